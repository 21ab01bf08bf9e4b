(class name: (constant) @name) @class
(class name: (scope_resolution name: (constant) @name)) @class
(module name: (constant) @name) @module
(module name: (scope_resolution name: (constant) @name)) @module
(method name: (_) @name) @method
(singleton_method name: (_) @name) @method
(assignment left: (constant) @name) @constant
(alias name: (_) @name) @alias
(call method: (identifier) @_m arguments: (argument_list (simple_symbol) @name) @accessor
  (#match? @_m "^(attr|attr_reader|attr_writer|attr_accessor|define_method|alias_method|def_delegator|def_delegators|def_instance_delegators)$"))
