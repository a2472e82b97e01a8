//! Extended attributes in system attributes, and FUID domain tables: both are packed nvlists.

use zpl::{FuidTable, decode_dxattr, linux_name};

/// Decodes bytes as the attribute `ZPL_DXATTR` and as a FUID table.
///
/// # Panics
/// On a bug in the library.
pub fn fuzz_dxattr(data: &[u8]) {
    if let Ok(attributes) = decode_dxattr(data) {
        let total: usize = attributes.iter().map(|(_, value)| value.len()).sum();
        assert!(total <= data.len());
        for (name, _) in &attributes {
            let _ = linux_name(name);
        }
    }
    if let Ok(table) = FuidTable::decode(data) {
        let _ = table.domains();
    }
}
