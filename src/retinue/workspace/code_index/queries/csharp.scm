(namespace_declaration name: (_) @name) @module
(file_scoped_namespace_declaration name: (_) @name) @module
(class_declaration name: (identifier) @name) @class
(record_declaration name: (identifier) @name) @class
(struct_declaration name: (identifier) @name) @struct
(interface_declaration name: (identifier) @name) @interface
(enum_declaration name: (identifier) @name) @enum
(enum_member_declaration name: (identifier) @name) @constant
(delegate_declaration name: (identifier) @name) @type
(method_declaration name: (identifier) @name) @method
(constructor_declaration name: (identifier) @name) @method
(destructor_declaration name: (identifier) @name) @method
(local_function_statement name: (identifier) @name) @function
(property_declaration name: (identifier) @name) @field
(event_declaration name: (identifier) @name) @field
(event_field_declaration (variable_declaration (variable_declarator name: (identifier) @name))) @field
(field_declaration (variable_declaration (variable_declarator name: (identifier) @name))) @field
(indexer_declaration "this" @name) @field
