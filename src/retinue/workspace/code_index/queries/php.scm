(namespace_definition name: (namespace_name) @name) @module
(class_declaration name: (name) @name) @class
(interface_declaration name: (name) @name) @interface
(trait_declaration name: (name) @name) @interface
(enum_declaration name: (name) @name) @enum
(enum_case name: (name) @name) @constant
(function_definition name: (name) @name) @function
(method_declaration name: (name) @name) @method
(property_element name: (variable_name (name) @name)) @field
(property_promotion_parameter name: (variable_name (name) @name)) @field
(const_element (name) @name) @constant
(function_call_expression function: (name) @_f arguments: (arguments . (argument (string (string_content) @name))) (#eq? @_f "define")) @constant
(program (expression_statement (assignment_expression left: (variable_name (name) @name)) @variable))
(assignment_expression left: (variable_name (name) @name)) @local
(catch_clause name: (variable_name (name) @name)) @local
