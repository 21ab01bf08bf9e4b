(class_definition name: (identifier) @name) @class
(function_definition name: (identifier) @name) @function
(module (expression_statement (assignment left: (identifier) @name) @variable))
(module (expression_statement (assignment left: (pattern_list (identifier) @name)) @variable))
(module (_ (block (expression_statement (assignment left: (identifier) @name) @variable))))
(module (_ (_ (block (expression_statement (assignment left: (identifier) @name) @variable)))))
(class_definition body: (block (expression_statement (assignment left: (identifier) @name) @variable)))
(class_definition body: (block (_ (block (expression_statement (assignment left: (identifier) @name) @variable)))))
(type_alias_statement left: (type (identifier) @name)) @type
