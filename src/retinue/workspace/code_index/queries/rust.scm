(mod_item name: (identifier) @name) @module
(struct_item name: (type_identifier) @name) @struct
(union_item name: (type_identifier) @name) @struct
(enum_item name: (type_identifier) @name) @enum
(enum_variant name: (identifier) @name) @constant
(trait_item name: (type_identifier) @name) @interface
(impl_item type: (type_identifier) @name) @impl
(impl_item type: (generic_type type: (type_identifier) @name)) @impl
(impl_item type: (reference_type type: (type_identifier) @name)) @impl
(impl_item type: (scoped_type_identifier name: (type_identifier) @name)) @impl
(function_item name: (identifier) @name) @function
(function_signature_item name: (identifier) @name) @function
(type_item name: (type_identifier) @name) @type
(associated_type name: (type_identifier) @name) @type
(const_item name: (identifier) @name) @constant
(static_item name: (identifier) @name) @variable
(macro_definition name: (identifier) @name) @macro
(field_declaration name: (field_identifier) @name) @field
