(variable_declarator name: (identifier) @name value: [(arrow_function) (function_expression) (class)]) @function
(class_declaration name: (_) @name) @class
(abstract_class_declaration name: (_) @name) @class
(class name: (_) @name) @class
(interface_declaration name: (_) @name) @interface
(type_alias_declaration name: (_) @name) @type
(enum_declaration name: (_) @name) @enum
(enum_body name: (_) @name @constant)
(enum_assignment name: (_) @name) @constant
(internal_module name: (_) @name) @module
(module name: (_) @name) @module
(function_declaration name: (_) @name) @function
(function_signature name: (_) @name) @function
(generator_function_declaration name: (_) @name) @function
(function_expression name: (_) @name) @function
(method_definition name: (_) @name) @method
(method_signature name: (_) @name) @method
(abstract_method_signature name: (_) @name) @method
(public_field_definition name: (_) @name) @field
(property_signature name: (_) @name) @field
(required_parameter (accessibility_modifier) pattern: (identifier) @name) @field
(program (lexical_declaration (variable_declarator name: (identifier) @name)) @variable)
(program (variable_declaration (variable_declarator name: (identifier) @name)) @variable)
(export_statement (lexical_declaration (variable_declarator name: (identifier) @name)) @variable)
(export_statement (variable_declaration (variable_declarator name: (identifier) @name)) @variable)
(internal_module body: (statement_block (lexical_declaration (variable_declarator name: (identifier) @name)) @variable))
(ambient_declaration (lexical_declaration (variable_declarator name: (identifier) @name)) @variable)
(ambient_declaration (variable_declaration (variable_declarator name: (identifier) @name)) @variable)
(pair key: (property_identifier) @name value: [(function_expression) (arrow_function)]) @method
(variable_declarator name: (identifier) @name) @local
(variable_declarator name: (object_pattern (shorthand_property_identifier_pattern) @name)) @local
(variable_declarator name: (object_pattern (pair_pattern value: (identifier) @name))) @local
(variable_declarator name: (array_pattern (identifier) @name)) @local
(variable_declarator value: (object (pair key: (_) @name) @field))
(assignment_expression right: (object (pair key: (_) @name) @field))
(for_in_statement kind: _ left: (identifier) @name) @local
