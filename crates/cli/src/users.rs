//! Names of users and groups in the arguments of commands.

pub(crate) use zuse::users::{Who, id_of, name_of};

/// A property such as `userused@root` with the id in place of the name, as it is stored.
pub(crate) fn by_id(property: &str) -> Option<String> {
    let (family, name) = property.split_once('@')?;
    let who = match family {
        _ if family.starts_with("user") => Who::User,
        _ if family.starts_with("group") => Who::Group,
        _ => return None,
    };
    let is_id = name.bytes().all(|b| b.is_ascii_digit()) || name.starts_with("S-1-");
    let id = if is_id { None } else { id_of(who, name) };
    id.map(|id| format!("{family}@{id}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_ids() {
        assert_eq!(by_id("userused@root").as_deref(), Some("userused@0"));
        assert_eq!(by_id("userused@17"), None);
        assert_eq!(by_id("projectused@root"), None);
    }
}
