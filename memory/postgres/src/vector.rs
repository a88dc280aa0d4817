//! Vectors in pgvector's binary format: the number of components and a reserved number, both of 16
//! bits, then the components, all big endian.

use std::error::Error;

use bytes::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

/// A vector of pgvector's type `vector`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Vector(pub(crate) Vec<f32>);

/// A borrowed vector.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VectorRef<'a>(pub(crate) &'a [f32]);

impl<'a> FromSql<'a> for Vector {
    fn from_sql(_: &Type, bytes: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        let (header, components) = bytes.split_at_checked(4).ok_or("a vector without a header")?;
        let width = usize::from(u16::from_be_bytes([header[0], header[1]]));
        let (components, rest) = components.as_chunks::<4>();
        if components.len() != width || !rest.is_empty() {
            return Err("a vector of another length than its header says".into());
        }
        Ok(Self(components.iter().map(|bytes| f32::from_be_bytes(*bytes)).collect()))
    }

    fn accepts(ty: &Type) -> bool {
        ty.name() == "vector"
    }
}

impl ToSql for VectorRef<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.extend_from_slice(&u16::try_from(self.0.len())?.to_be_bytes());
        out.extend_from_slice(&[0, 0]);
        for component in self.0 {
            out.extend_from_slice(&component.to_be_bytes());
        }
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        ty.name() == "vector"
    }

    to_sql_checked!();
}
