//! The names of types of objects.

use ondisk::{ByteswapClass, ObjectType};

/// The name of a type in the table: self-describing types are named by their byte order alone.
pub(super) fn type_name(kind: ObjectType) -> String {
    if !kind.is_self_describing() {
        return kind.name();
    }
    let class = match kind.byteswap_class() {
        Some(ByteswapClass::Uint8) => "uint8",
        Some(ByteswapClass::Uint16) => "uint16",
        Some(ByteswapClass::Uint32) => "uint32",
        Some(ByteswapClass::Uint64) => "uint64",
        Some(ByteswapClass::Zap) => "zap",
        Some(ByteswapClass::Dnode) => "dnode",
        Some(ByteswapClass::Objset) => "objset",
        Some(ByteswapClass::Znode) => "znode",
        Some(ByteswapClass::OldAcl) => "oldacl",
        Some(ByteswapClass::Acl) => "acl",
        None => "UNKNOWN",
    };
    class.to_owned()
}
