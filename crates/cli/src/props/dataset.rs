//! Properties of datasets (OpenZFS: `zfs_valid_proplist`).

use pool::prop::{self, FS};

use super::Said;

pub(crate) use control::feature_of;

/// Adds a property of an option `-O` to a list, or says what is wrong with it.
pub(crate) fn add(list: &mut Vec<Said>, name: &str, value: &str) -> Result<(), String> {
    let own = match prop::find(name).filter(|def| def.is_valid_for(FS)) {
        Some(def) => def.name,
        None if prop::is_user_property(name) || crate::columns::is_family(name) => name,
        None => return Err(format!("property '{name}' is not a valid filesystem property")),
    };
    if list.iter().any(|(n, _)| n == own) {
        return Err(format!("property '{name}' specified multiple times"));
    }
    list.push((own.to_owned(), value.to_owned()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use pool::Value;

    use super::*;

    #[test]
    fn options_are_for_file_systems() {
        let add_to = |list: &mut Vec<Said>, name: &str| add(list, name, "1").err().unwrap_or_default();
        let mut list = Vec::new();
        assert_eq!(add_to(&mut list, "compress"), "");
        assert_eq!(add_to(&mut list, "compression"), "property 'compression' specified multiple times");
        assert_eq!(add_to(&mut list, "volsize"), "property 'volsize' is not a valid filesystem property");
        assert_eq!(add_to(&mut list, "userquota@0"), "");
        assert_eq!(add_to(&mut list, "a:b"), "");
        assert_eq!(
            list.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
            ["compression", "userquota@0", "a:b"]
        );
    }

    #[test]
    fn values_need_features() {
        assert_eq!(feature_of("recordsize", &Value::Number(1 << 20)), Some("large_blocks"));
        assert_eq!(feature_of("compression", &Value::Number(400)), Some("zstd_compress"));
        assert_eq!(feature_of("dedup", &Value::Number(270)), Some("blake3"));
        assert_eq!(feature_of("checksum", &Value::Number(8)), None);
    }
}
