//! The permissions that a request needs, and on which datasets: the rules of [`Ioc::who`] for one request (OpenZFS: the functions `zfs_secpolicy_*`, `zfs_check_settable`).
//!
//! Datasets that a request is about to make are named as well: what `zfs allow` has said of those above them counts. Some of what a request names is left out where its caller has no
//! permission for it, or it is gone ([`Permissions`]), and the request is made without it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nvlist::NvList;
use ondisk::send::feature;
use pool::prop::is_user_property;
use pool::{Pool, SpaceKind};

use crate::decode::{QUOTA_FAMILIES, require_list, require_str, require_u64};
use crate::names::{check_inside, pool_part};
use crate::{Error, Failed, Ioc, On, Permission, Who};

/// Properties of a new encrypted dataset that are no settings of it (OpenZFS: `dsl_crypto_params_create_nvlist` takes them out).
const OF_KEYS: [&str; 4] = ["encryption", "keyformat", "pbkdf2iters", "pbkdf2salt"];
/// Properties that a new file system is made with, and that are not set in it afterwards (OpenZFS: `zfs_fill_zplprops` takes them out).
const OF_NEW_FS: [&str; 9] = [
    "normalization",
    "utf8only",
    "casesensitivity",
    "defaultuserquota",
    "defaultgroupquota",
    "defaultprojectquota",
    "defaultuserobjquota",
    "defaultgroupobjquota",
    "defaultprojectobjquota",
];
/// The type of a request for a file system (OpenZFS: `DMU_OST_ZFS`).
const FILE_SYSTEM: i32 = 2;

/// A permission that a request needs.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Need {
    /// The file system or volume.
    pub dataset: String,
    /// Names of permissions, of which one is enough.
    pub any_of: Vec<String>,
}

impl Need {
    fn of(dataset: &str, any_of: &[&str]) -> Need {
        Need { dataset: dataset.to_owned(), any_of: any_of.iter().map(|name| (*name).to_owned()).collect() }
    }
}

/// What a request needs of a caller who is neither the owner nor root.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Needs {
    /// Nothing.
    Nothing,
    /// That he was the owner.
    Owner,
    /// Permissions.
    Permissions(Permissions),
}

/// The permissions that a request needs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Permissions {
    /// All of these: without one the request is refused.
    pub needed: BTreeSet<Need>,
    /// For each property that a receive would set or inherit: without it the property is left out, and the stream received.
    pub of_properties: BTreeMap<String, Need>,
    /// Names in the list of what is destroyed already. They are left out: nobody has been asked whether something that gets such a name meanwhile may be destroyed.
    pub gone: BTreeSet<String>,
}

/// What decides over permissions, of the datasets of a pool.
pub trait Facts {
    /// Whether there is a file system, volume or snapshot of this name.
    ///
    /// # Errors
    /// When it cannot be read.
    fn exists(&self, dataset: &str) -> Result<bool, Failed>;

    /// The snapshot that one was cloned from.
    ///
    /// # Errors
    /// ENOENT; when it cannot be read.
    fn origin(&self, dataset: &str) -> Result<Option<String>, Failed>;

    /// Whether one is encrypted.
    ///
    /// # Errors
    /// ENOENT; when it cannot be read.
    fn is_encrypted(&self, dataset: &str) -> Result<bool, Failed>;
}

impl Facts for Arc<Pool> {
    fn exists(&self, dataset: &str) -> Result<bool, Failed> {
        match self.dataset(dataset) {
            Ok(_) => Ok(true),
            Err(e) if e.is_not_found() => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    fn origin(&self, dataset: &str) -> Result<Option<String>, Failed> {
        Ok(self.dataset(dataset)?.origin()?.map(|origin| origin.name().to_owned()))
    }

    fn is_encrypted(&self, dataset: &str) -> Result<bool, Failed> {
        Ok(self.dataset(dataset)?.is_encrypted()?)
    }
}

impl Ioc {
    /// The permissions that this request needs, with this name and list.
    ///
    /// # Errors
    /// EINVAL for a list that is not one of this request, as where it sets a property that nobody can set; ENOENT where there is nothing above a new name; as `facts`.
    pub fn needs(self, name: &str, input: &NvList, facts: &dyn Facts) -> Result<Needs, Failed> {
        let permissions = match self.who() {
            Who::Everybody => return Ok(Needs::Nothing),
            Who::Owner => return Ok(Needs::Owner),
            Who::Allowed(permissions) => permissions,
        };
        self.check(input)?;
        let asked = Asked { ioc: self, name, input, facts };
        let mut all = Permissions::default();
        for permission in permissions {
            asked.add(*permission, &mut all)?;
        }
        Ok(Needs::Permissions(all))
    }
}

/// A request whose permissions are looked for.
struct Asked<'a> {
    ioc: Ioc,
    name: &'a str,
    input: &'a NvList,
    facts: &'a dyn Facts,
}

impl Asked<'_> {
    fn add(&self, permission: Permission, all: &mut Permissions) -> Result<(), Failed> {
        let mut need = |dataset: &str, any_of: &[&str]| {
            all.needed.insert(Need::of(dataset, any_of));
        };
        match permission {
            Permission::Named(name, On::Each) => {
                let (there, gone) = self.each()?;
                there.iter().for_each(|dataset| need(dataset, &[name]));
                all.gone.extend(gone);
            }
            Permission::Named(name, on) => self.datasets(on)?.iter().for_each(|dataset| need(dataset, &[name])),
            Permission::If(key, name, on) => {
                if self.input.get_nvlist(key).is_some_and(|list| !list.is_empty()) {
                    self.datasets(on)?.iter().for_each(|dataset| need(dataset, &[name]));
                }
            }
            Permission::Send => {
                let dataset = head(self.name);
                let mut any_of = vec!["send"];
                if self.input.contains("rawok") {
                    any_of.push("send:raw");
                    if self.facts.is_encrypted(dataset)? {
                        any_of.push("send:encrypted");
                    }
                }
                need(dataset, &any_of);
            }
            Permission::Receive(key) => {
                if key.is_none_or(|key| self.input.contains(key)) {
                    let dataset = self.received()?;
                    let append = (!self.input.contains("force")).then_some("receive:append");
                    let any_of: Vec<&str> = std::iter::once("receive").chain(append).collect();
                    [&any_of[..], &["mount"], &["create"]].iter().for_each(|any_of| need(dataset, any_of));
                }
                all.of_properties.extend(self.received_properties());
            }
            Permission::OfProperties => {
                for property in self.properties()? {
                    need(head(self.name), &[of_property(property, self.name)?]);
                }
            }
            Permission::OfAccounting => {
                let number = usize::try_from(require_u64(self.input, "type")?).ok();
                let kind = number.and_then(|number| SpaceKind::ALL.get(number));
                let kind = kind.ok_or_else(|| Error::Invalid("no such kind of accounting".to_owned()))?;
                need(head(self.name), &[kind.prefix()]);
            }
        }
        Ok(())
    }

    fn datasets(&self, on: On) -> Result<Vec<String>, Failed> {
        Ok(match on {
            On::Name => vec![head(self.name).to_owned()],
            On::Parent => vec![parent(self.name)?.to_owned()],
            On::TargetParent => vec![parent(require_str(self.input, "target")?)?.to_owned()],
            On::Origin => {
                let origin = match self.input.get_str("origin") {
                    Some(origin) => Some(origin.to_owned()),
                    None => self.facts.origin(head(self.name))?,
                };
                origin.iter().map(|origin| head(origin).to_owned()).collect()
            }
            On::Each => self.each()?.0,
        })
    }

    /// The datasets of what the list names, and the names of what is to be destroyed and is gone (OpenZFS: `zfs_secpolicy_destroy_snaps`, `zfs_secpolicy_destroy_bookmarks`).
    fn each(&self) -> Result<(Vec<String>, Vec<String>), Failed> {
        let (list, mark) = match self.ioc {
            Ioc::Snapshot | Ioc::DestroySnaps => (require_list(self.input, "snaps")?, '@'),
            Ioc::Hold => (require_list(self.input, "holds")?, '@'),
            Ioc::Bookmark | Ioc::DestroyBookmarks => (self.input, '#'),
            _ => (self.input, '@'),
        };
        let (mut there, mut gone) = (Vec::new(), Vec::new());
        for (name, _) in list {
            let invalid = || Error::Invalid(format!("'{name}' has no '{mark}'"));
            let (head, _) = name.split_once(mark).ok_or_else(invalid)?;
            check_inside(name, pool_part(self.name))?;
            let is_gone = match self.ioc {
                Ioc::DestroySnaps => !self.facts.exists(name)?,
                Ioc::DestroyBookmarks => !self.facts.exists(head)?,
                _ => false,
            };
            if is_gone { gone.push(name.to_owned()) } else { there.push(head.to_owned()) }
        }
        Ok((there, gone))
    }

    /// The properties that come with a stream or are said by its user, each with its permission. Those that nobody can set have none: the receive passes over them. Nor has what a new dataset
    /// is encrypted with.
    fn received_properties(&self) -> impl Iterator<Item = (String, Need)> {
        let into = self.input.get_str("snapname").map(head);
        let lists = ["props", "localprops"].into_iter().filter(|_| self.ioc == Ioc::RecvNew);
        let is_new = self.is_received_anew();
        let all = lists.filter_map(|key| Some((key, self.input.get_nvlist(key)?)));
        let all = all.flat_map(move |(key, list)| list.into_iter().map(move |(name, _)| (key, name)));
        let set = all.filter(move |(key, name)| !(is_new && *key == "localprops" && OF_KEYS.contains(name)));
        set.filter_map(move |(_, name)| {
            let into = into?;
            Some((name.to_owned(), Need::of(into, &[of_property(name, into).ok()?])))
        })
    }

    /// Whether a stream makes a dataset that is encrypted here, and not where it comes from (OpenZFS: `dmu_recv_begin`, for a stream that is whole and not raw).
    fn is_received_anew(&self) -> bool {
        let begin = self.input.get_byte_array("begin_record").and_then(|record| stream::begin_record(record).ok());
        let is_whole = |begin: ondisk::send::Begin| begin.fromguid.0 == 0 && begin.features() & feature::RAW == 0;
        !self.input.contains("origin") && begin.is_some_and(is_whole)
    }

    /// The dataset that a stream is received into, or if that is not there the one above it (OpenZFS: `lzc_receive`); or whose properties are set as received.
    fn received(&self) -> Result<&str, Failed> {
        let Some(snapshot) = self.input.get_str("snapname") else { return Ok(head(self.name)) };
        let into = head(snapshot);
        if self.facts.exists(into)? { Ok(into) } else { Ok(parent(into)?) }
    }

    /// The properties that are set or inherited.
    fn properties(&self) -> Result<Vec<&str>, Failed> {
        if self.ioc == Ioc::InheritProp {
            return Ok(vec![require_str(self.input, "prop")?]);
        }
        let is_new = self.ioc == Ioc::Create;
        let is_new_fs = is_new && self.input.get_i32("type") == Some(FILE_SYSTEM);
        let is_made_with = |name: &&str| (is_new && OF_KEYS.contains(name)) || (is_new_fs && OF_NEW_FS.contains(name));
        let list = self.input.get_nvlist("props").into_iter().flatten();
        Ok(list.map(|(name, _)| name).filter(|name| !is_made_with(name)).collect())
    }
}

/// The permission for a property of a dataset.
fn of_property<'a>(property: &'a str, dataset: &str) -> Result<&'a str, Error> {
    if is_user_property(property) {
        return Ok("userprop");
    }
    let Some((family, _)) = property.split_once('@') else { return Ok(property) };
    // what users have cannot be set, and nobody has something of a snapshot alone
    let is_set = !dataset.contains('@') && QUOTA_FAMILIES.iter().any(|(_, known)| *known == family);
    if is_set { Ok(family) } else { Err(Error::Invalid(format!("'{property}' cannot be set"))) }
}

/// The file system or volume that a name is of.
fn head(name: &str) -> &str {
    name.split(['@', '#']).next().unwrap_or(name)
}

/// The dataset above one, or that a snapshot is of (OpenZFS: `zfs_get_parent`).
fn parent(name: &str) -> Result<&str, Failed> {
    let above = name.rsplit_once('@').or_else(|| name.rsplit_once('/'));
    let none = || pool::Error::NoSuchDataset { name: name.to_owned() };
    Ok(above.map(|(above, _)| above).ok_or_else(none)?)
}
