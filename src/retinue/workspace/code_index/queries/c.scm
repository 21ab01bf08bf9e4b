(preproc_def name: (identifier) @name) @macro
(preproc_function_def name: (identifier) @name) @macro
(struct_specifier name: (type_identifier) @name body: (_)) @struct
(union_specifier name: (type_identifier) @name body: (_)) @struct
(enum_specifier name: (type_identifier) @name body: (_)) @enum
(enumerator name: (identifier) @name) @constant
(function_definition declarator: (function_declarator declarator: (identifier) @name)) @function
(function_definition declarator: (_ declarator: (function_declarator declarator: (identifier) @name))) @function
(function_definition declarator: (_ declarator: (_ declarator: (function_declarator declarator: (identifier) @name)))) @function
(function_definition declarator: (parenthesized_declarator (function_declarator declarator: (identifier) @name))) @function
(type_definition declarator: (type_identifier) @name) @type
(type_definition declarator: (_ declarator: (type_identifier) @name)) @type
(type_definition declarator: (function_declarator declarator: (parenthesized_declarator (pointer_declarator declarator: (type_identifier) @name)))) @type
(field_declaration declarator: (field_identifier) @name) @field
(field_declaration declarator: (_ declarator: (field_identifier) @name)) @field
(field_declaration declarator: (_ declarator: (_ declarator: (field_identifier) @name))) @field
(field_declaration declarator: (function_declarator declarator: (parenthesized_declarator (pointer_declarator declarator: (field_identifier) @name)))) @field
(field_declaration declarator: (pointer_declarator declarator: (function_declarator declarator: (parenthesized_declarator (pointer_declarator declarator: (field_identifier) @name))))) @field
(translation_unit (declaration declarator: (identifier) @name) @variable)
(translation_unit (declaration declarator: (init_declarator declarator: (identifier) @name)) @variable)
(translation_unit (declaration declarator: (_ declarator: (identifier) @name)) @variable)
(translation_unit (declaration declarator: (init_declarator declarator: (_ declarator: (identifier) @name))) @variable)
(translation_unit (declaration declarator: (init_declarator declarator: (_ declarator: (_ declarator: (identifier) @name)))) @variable)
(preproc_if (declaration declarator: (identifier) @name) @variable)
(preproc_if (declaration declarator: (init_declarator declarator: (identifier) @name)) @variable)
(preproc_if (declaration declarator: (array_declarator declarator: (identifier) @name)) @variable)
(preproc_ifdef (declaration declarator: (identifier) @name) @variable)
(preproc_ifdef (declaration declarator: (init_declarator declarator: (identifier) @name)) @variable)
(preproc_ifdef (declaration declarator: (array_declarator declarator: (identifier) @name)) @variable)
(preproc_else (declaration declarator: (identifier) @name) @variable)
(preproc_else (declaration declarator: (init_declarator declarator: (identifier) @name)) @variable)
(preproc_else (declaration declarator: (array_declarator declarator: (identifier) @name)) @variable)
