(class_specifier name: (type_identifier) @name body: (_)) @class
(class_specifier name: (template_type name: (type_identifier) @name) body: (_)) @class
(struct_specifier name: (template_type name: (type_identifier) @name) body: (_)) @struct
(namespace_definition name: (namespace_identifier) @name) @module
(namespace_definition name: (nested_namespace_specifier (namespace_identifier) @name)) @module
(alias_declaration name: (type_identifier) @name) @type
(concept_definition name: (identifier) @name) @type
(function_definition declarator: (function_declarator declarator: (field_identifier) @name)) @method
(function_definition declarator: (_ (function_declarator declarator: (field_identifier) @name))) @method
(function_definition declarator: (_ (function_declarator declarator: (identifier) @name))) @function
(function_definition declarator: (_ (_ (function_declarator declarator: (field_identifier) @name)))) @method
(function_definition declarator: (function_declarator declarator: (qualified_identifier name: (identifier) @name))) @method
(function_definition declarator: (_ (function_declarator declarator: (qualified_identifier name: (identifier) @name)))) @method
(function_definition declarator: (function_declarator declarator: (qualified_identifier name: (qualified_identifier name: (_) @name)))) @method
(function_definition declarator: (function_declarator declarator: (qualified_identifier name: (destructor_name) @name))) @method
(function_definition declarator: (function_declarator declarator: (qualified_identifier name: (operator_name) @name))) @method
(function_definition declarator: (function_declarator declarator: (template_function name: (identifier) @name))) @function
(function_definition declarator: (function_declarator declarator: (operator_name) @name)) @method
(function_definition declarator: (_ (function_declarator declarator: (operator_name) @name))) @method
(function_definition declarator: (function_declarator declarator: (destructor_name) @name)) @method
(function_definition declarator: (operator_cast) @name) @method
(field_declaration declarator: (reference_declarator (field_identifier) @name)) @field
(namespace_definition body: (declaration_list (declaration declarator: (identifier) @name) @variable))
(namespace_definition body: (declaration_list (declaration declarator: (init_declarator declarator: (identifier) @name)) @variable))
(namespace_definition body: (declaration_list (declaration declarator: (init_declarator declarator: (_ declarator: (identifier) @name))) @variable))
(namespace_definition body: (declaration_list (template_declaration (declaration declarator: (init_declarator declarator: (identifier) @name)) @variable)))
