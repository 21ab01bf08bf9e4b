(package_clause (package_identifier) @name) @package
(function_declaration name: (identifier) @name) @function
(method_declaration name: (field_identifier) @name) @method
(type_spec name: (type_identifier) @name) @type
(type_alias name: (type_identifier) @name) @type
(source_file (const_declaration (const_spec name: (identifier) @name) @constant))
(source_file (var_declaration (var_spec name: (identifier) @name) @variable))
(source_file (var_declaration (var_spec_list (var_spec name: (identifier) @name) @variable)))
(field_declaration name: (field_identifier) @name) @field
(field_declaration !name type: (type_identifier) @name) @field
(field_declaration !name type: (qualified_type name: (type_identifier) @name)) @field
(field_declaration !name type: (generic_type type: (type_identifier) @name)) @field
(method_elem name: (field_identifier) @name) @method
