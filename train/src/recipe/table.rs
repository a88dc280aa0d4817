//! Declares the structs that tables of recipes are read into.

/// Declares a table of recipes: the description, type and default of each key. A table may leave
/// out keys; an unknown key is an error.
macro_rules! table {
    (
        $(#[$of_table:meta])*
        pub struct $name:ident {
            $($(#[$of_key:meta])* pub $key:ident: $type:ty = $default:expr,)*
        }
    ) => {
        #[derive(
            Debug,
            Clone,
            PartialEq,
            serde::Serialize,
            serde::Deserialize,
            schemars::JsonSchema,
        )]
        #[serde(deny_unknown_fields, default)]
        $(#[$of_table])*
        pub struct $name {
            $($(#[$of_key])* pub $key: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($key: $default,)* }
            }
        }
    };
}

pub(crate) use table;
