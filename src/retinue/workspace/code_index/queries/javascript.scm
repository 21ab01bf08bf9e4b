(variable_declarator name: (identifier) @name value: [(arrow_function) (function_expression) (class)]) @function
(class_declaration name: (_) @name) @class
(class name: (_) @name) @class
(function_declaration name: (_) @name) @function
(generator_function_declaration name: (_) @name) @function
(function_expression name: (_) @name) @function
(method_definition name: (_) @name) @method
(field_definition property: (_) @name) @field
(program (lexical_declaration (variable_declarator name: (identifier) @name)) @variable)
(program (variable_declaration (variable_declarator name: (identifier) @name)) @variable)
(export_statement (lexical_declaration (variable_declarator name: (identifier) @name)) @variable)
(export_statement (variable_declaration (variable_declarator name: (identifier) @name)) @variable)
(pair key: (property_identifier) @name value: [(function_expression) (arrow_function)]) @method
(assignment_expression left: (identifier) @name right: [(function_expression) (arrow_function) (class)]) @function
(assignment_expression left: (member_expression property: (property_identifier) @name)
  right: [(function_expression) (arrow_function) (class)]) @method
(program (expression_statement (assignment_expression
  left: (member_expression property: (property_identifier) @name)) @field))
(program (expression_statement (assignment_expression right: (assignment_expression
  left: (member_expression property: (property_identifier) @name)) @field)))
(program (_ (variable_declarator value: (object (pair key: (property_identifier) @name) @field))))
(program (expression_statement (assignment_expression right: (object (pair key: (property_identifier) @name) @field))))
(variable_declarator name: (identifier) @name) @local
(variable_declarator value: (object (pair key: (_) @name) @field))
(assignment_expression right: (object (pair key: (_) @name) @field))
(variable_declarator value: (object (pair value: (object (pair key: (_) @name) @field))))
(for_in_statement kind: _ left: (identifier) @name) @local
