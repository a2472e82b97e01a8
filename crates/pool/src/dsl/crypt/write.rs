//! Changes of datasets' keys (OpenZFS: `dsl_crypt.c`, the writing half).
//!
//! Each encrypted dataset that is not a clone has a *key object*: a master key and an HMAC key of its own, wrapped with the key of its encryption
//! root, whose directory it names. Clones share the object of their origin. To create a dataset under a root, or to rewrap its keys, the root's key
//! must be loaded: the keyring keeps it for that.

use std::collections::BTreeSet;
use std::sync::Arc;

use base::{Guid, ObjectId};
use codec::crypt::{DatasetKey, KEY_VERSION, Suite, WrappedKey, WrappingKey};
use dmu::{Tx, ZapValue};
use ondisk::ObjectType;
use ondisk::dsl::dir_keys;

use crate::dsl::Refusal;
use crate::dsl::lookup::Live;
use crate::dsl::props::write::Put;
use crate::dsl::refused;
use crate::spa::mos::{self, Mos};
use crate::spa::{Spa, TaskCx};
use crate::{Error, KeyFormat, KeyInfo, Value};

/// The entry of a key object that counts the directories that have it (OpenZFS: `DSL_CRYPTO_KEY_REFCOUNT`).
pub(in crate::dsl) const KEY_REFCOUNT: &str = "DSL_CRYPTO_REFCOUNT";
/// The fewest rounds of PBKDF2 (OpenZFS: `MIN_PBKDF2_ITERATIONS`).
const ITERS_MIN: u64 = 100_000;

/// The key of a new encryption root.
#[derive(Clone, Debug)]
pub struct NewKey {
    /// The cipher of the dataset; a change of the key leaves it as it is.
    pub cipher: Suite,
    /// How users give the key.
    pub keyformat: KeyFormat,
    /// The `keylocation`: `prompt`, or a URL.
    pub keylocation: String,
    /// The key itself.
    pub wrapping: WrappingKey,
    /// Rounds of PBKDF2 for a passphrase; else 0.
    pub pbkdf2_iters: u64,
    /// Salt of PBKDF2 for a passphrase; else 0.
    pub salt: u64,
}

/// How a dataset without a key of its own is encrypted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WithoutKey {
    /// As its parent is, with its parent's cipher.
    #[default]
    Inherit,
    /// Under its parent's encryption root, with another cipher.
    Cipher(Suite),
    /// Not at all.
    Off,
}

/// The change of a dataset's key (OpenZFS: `dcp_cmd_t`).
#[derive(Clone, Debug)]
pub enum ChangeKey {
    /// Makes the dataset an encryption root with this key, or gives an encryption root this key.
    NewRoot(NewKey),
    /// Moves the dataset under its parent's encryption root.
    Inherit,
    /// Marks the dataset as an encryption root; its keys stay wrapped as they are (after a raw receive).
    ForceNew,
    /// Puts the dataset under its parent's encryption root; its keys stay wrapped as they are.
    ForceInherit,
}

/// The key of a dataset that is about to be created.
pub(in crate::dsl) struct KeyPlan {
    cipher: Suite,
    wrapping: WrappingKey,
    format: u64,
    iters: u64,
    salt: u64,
    /// The encryption root's directory; `Err` with the `keylocation` if the dataset itself is the root.
    root: Result<ObjectId, String>,
}

/// The way a key is given, as recorded in a key object.
#[derive(Clone, Copy, Debug)]
pub(in crate::dsl) struct KeyForm {
    /// Number of the `keyformat`.
    pub(in crate::dsl) format: u64,
    /// Rounds of PBKDF2.
    pub(in crate::dsl) iters: u64,
    /// Salt of PBKDF2.
    pub(in crate::dsl) salt: u64,
}

impl KeyPlan {
    fn form(&self) -> KeyForm {
        KeyForm { format: self.format, iters: self.iters, salt: self.salt }
    }
}

fn check_key(name: &str, key: &NewKey) -> Result<(), Error> {
    let passphrase = key.keyformat == KeyFormat::Passphrase;
    if passphrase && (key.salt == 0 || key.pbkdf2_iters < ITERS_MIN) {
        return Err(refused(name, Refusal::Invalid("a passphrase needs a salt and at least 100000 pbkdf2iters")));
    }
    if !passphrase && (key.salt != 0 || key.pbkdf2_iters != 0) {
        return Err(refused(name, Refusal::Invalid("pbkdf2iters and salt are for passphrases")));
    }
    check_location(name, &key.keylocation)
}

/// OpenZFS: `zfs_prop_valid_keylocation`.
fn check_location(name: &str, location: &str) -> Result<(), Error> {
    let below = |prefix: &str| location.len() > prefix.len() && location.starts_with(prefix);
    if location == "prompt" || ["file:///", "https://", "http://"].into_iter().any(below) {
        return Ok(());
    }
    Err(refused(name, Refusal::Invalid("invalid keylocation")))
}

impl Mos {
    /// The key information of directory `dir`; `None` if it is not encrypted.
    pub(in crate::dsl) fn key_info(&self, dir: ObjectId) -> Result<Option<KeyInfo>, Error> {
        self.extra_id(dir, dir_keys::CRYPTO_KEY_OBJ)?.map(|object| KeyInfo::load(self, object)).transpose()
    }

    pub(in crate::dsl) fn key_root(&self, dir: ObjectId) -> Result<Option<ObjectId>, Error> {
        Ok(self.key_info(dir)?.map(|info| info.root_dir))
    }

    /// The key object of directory `dir`, and how many directories have it; `None` if it is not encrypted.
    ///
    /// # Errors
    /// If it does not say how many: a key that others have would be freed.
    pub(in crate::dsl) fn key_uses(&self, dir: ObjectId) -> Result<Option<(ObjectId, u64)>, Error> {
        let Some(object) = self.extra_id(dir, dir_keys::CRYPTO_KEY_OBJ)? else { return Ok(None) };
        let uses = self.zap(object)?.lookup_u64(KEY_REFCOUNT)?.filter(|uses| *uses > 0);
        let uses = uses.ok_or_else(|| Error::corrupt(object, "a key without a count of its uses"))?;
        Ok(Some((object, uses)))
    }

    /// Stores wrapped keys (OpenZFS: `dsl_crypto_key_sync_impl`).
    pub(in crate::dsl) fn put_wrapped(
        &self,
        tx: &Tx,
        object: ObjectId,
        wrapped: &WrappedKey,
        form: KeyForm,
        root: ObjectId,
    ) -> Result<(), Error> {
        let zap = self.zap(object)?;
        zap.update_u64(tx, "DSL_CRYPTO_SUITE", wrapped.suite as u64)?;
        zap.update_id(tx, "DSL_CRYPTO_ROOT_DDOBJ", root)?;
        zap.update_u64(tx, "DSL_CRYPTO_GUID", wrapped.guid.0)?;
        let fields: [(&str, &[u8]); 4] = [
            ("DSL_CRYPTO_IV", &wrapped.iv),
            ("DSL_CRYPTO_MAC", &wrapped.mac),
            ("DSL_CRYPTO_MASTER_KEY_1", &wrapped.master),
            ("DSL_CRYPTO_HMAC_KEY_1", &wrapped.hmac),
        ];
        for (name, bytes) in fields {
            zap.update_value(tx, name, &ZapValue::from_bytes(bytes))?;
        }
        zap.update_u64(tx, "keyformat", form.format)?;
        zap.update_u64(tx, "pbkdf2salt", form.salt)?;
        Ok(zap.update_u64(tx, "pbkdf2iters", form.iters)?)
    }
}

impl Spa {
    /// How a new dataset below directory `parent` is encrypted (OpenZFS: `dmu_objset_create_crypt_check`).
    pub(in crate::dsl) fn key_of_new(
        &self,
        mos: &Mos,
        name: &str,
        parent: ObjectId,
        key: Option<NewKey>,
        without: WithoutKey,
    ) -> Result<Option<KeyPlan>, Error> {
        let above = mos.key_info(parent)?;
        let plan = match (key, above) {
            (Some(key), _) => {
                check_key(name, &key)?;
                plan_of(key)
            }
            (None, None) if matches!(without, WithoutKey::Cipher(_)) => {
                return Err(refused(name, Refusal::Invalid("a key is needed: the parent has none to inherit")));
            }
            (None, Some(above)) if without != WithoutKey::Off => {
                let cipher = if let WithoutKey::Cipher(cipher) = without { cipher } else { above.wrapped.suite };
                KeyPlan { cipher, ..self.plan_under(name, &above)? }
            }
            _ => return Ok(None),
        };
        for feature in ["encryption", "bookmark_v2"] {
            if !self.feature_enabled(mos, feature)? {
                return Err(refused(name, Refusal::Unsupported));
            }
        }
        Ok(Some(plan))
    }

    /// Plans wrapping with the key of the encryption root that `info` belongs to.
    fn plan_under(&self, name: &str, info: &KeyInfo) -> Result<KeyPlan, Error> {
        let wrapping = self.zio().keys().wrapping(info.root_dir);
        let unknown = || Error::corrupt(info.object, "a key of an unknown keyformat");
        Ok(KeyPlan {
            cipher: info.wrapped.suite,
            wrapping: wrapping.ok_or_else(|| refused(name, Refusal::KeyUnavailable))?,
            format: info.keyformat.ok_or_else(unknown)?.number(),
            iters: info.pbkdf2_iters,
            salt: info.pbkdf2_salt,
            root: Ok(info.root_dir),
        })
    }

    /// Returns whether the way from encrypted directory `dir` to its encryption root leads through directory `on`: from a clone it leads to its
    /// origin, from any other to its parent. Whatever is on that way stays as long as `dir` is there, so the root does too; a way that leads in a
    /// circle, as OpenZFS lets it become, keeps nothing, and leads through everything here.
    pub(in crate::dsl) fn key_hangs_on(&self, mos: &Mos, dir: ObjectId, on: ObjectId) -> Result<bool, Error> {
        let (mut at, mut seen) = (dir, BTreeSet::new());
        while at != on && seen.insert(at) {
            if mos.key_root(at)?.is_none_or(|root| root == at) {
                return Ok(false);
            }
            let phys = mos.dir_phys(at)?;
            at = if self.is_clone(mos, at)? { mos.live(phys.origin_obj)?.phys.dir_obj } else { phys.parent_obj };
        }
        Ok(true)
    }

    /// Checks that `keylocation` can be set (OpenZFS: `dsl_crypto_can_set_keylocation`).
    pub(in crate::dsl) fn check_keylocation(&self, mos: &Mos, ds: &Live, location: &str) -> Result<(), Error> {
        match mos.key_root(ds.phys.dir_obj)? {
            None if location == "none" => Ok(()),
            Some(root) if root == ds.phys.dir_obj => check_location("keylocation", location),
            _ => Err(refused("keylocation", Refusal::KeyLocation)),
        }
    }

    /// Loads the key of the encryption root `name`; returns how many datasets it opens, snapshots included.
    ///
    /// # Errors
    /// [`Refusal::KeyLoaded`]; else as [`Pool::load_key`](crate::Pool::load_key).
    pub fn load_key(&self, name: &str, key: &WrappingKey) -> Result<usize, Error> {
        let view = self.view()?;
        let (root, _) = view.encryption_root(name)?;
        if self.zio().keys().wrapping(root.id()).is_some() {
            return Err(refused(name, Refusal::KeyLoaded));
        }
        view.load_key(name, key)
    }

    /// Unloads the key of the encryption root `name`, after all changes made with it are on disk.
    ///
    /// # Errors
    /// [`Refusal::Busy`] while a dataset under it is in use, [`Refusal::KeyUnavailable`] if it is not loaded; else as
    /// [`Pool::unload_key`](crate::Pool::unload_key).
    pub fn unload_key(&self, name: &str) -> Result<(), Error> {
        self.sync()?;
        let view = self.view()?;
        let (root, _) = view.encryption_root(name)?;
        if self.zio().keys().wrapping(root.id()).is_none() {
            return Err(refused(name, Refusal::KeyUnavailable));
        }
        let ids = view.datasets_under(&root)?;
        // no dataset under the root can be opened between the check and the removal of the keys
        let forget = || {
            self.zio().keys().remove_wrapping(root.id());
            ids.iter().for_each(|id| self.zio().forget_key(*id));
        };
        self.dsl.open_datasets.close_clean(&ids, forget).map_err(|why| refused(name, why))
    }

    /// Gives the key of dataset `from`, if it is loaded, to dataset `to`, which has the same: a snapshot, or a clone. Otherwise `to` has none.
    pub(in crate::dsl) fn share_loaded_key(&self, from: ObjectId, to: ObjectId) {
        use zio::KeySource;
        match self.zio().keys().key(from) {
            Some(key) => self.zio().keys().insert(to, key),
            None => drop(self.zio().keys().remove(to)),
        }
    }

    /// Changes the key of an encrypted dataset, and of all datasets that inherit it.
    ///
    /// # Errors
    /// [`Error::Refused`]: [`Refusal::KeyUnavailable`]; [`Refusal::Invalid`] for a clone, whose key is its origin's, and for a contradictory
    /// change; [`Error::NotEncrypted`].
    pub fn change_key(self: &Arc<Self>, name: &str, change: ChangeKey) -> Result<(), Error> {
        let name = name.to_string();
        self.sync_task(move |cx| {
            let ds = cx.spa.find_head(cx.mos, &name)?;
            let step = cx.plan_change(&name, &ds, change)?;
            cx.change_keys(&ds, &step)
        })
    }
}

fn plan_of(key: NewKey) -> KeyPlan {
    KeyPlan {
        cipher: key.cipher,
        wrapping: key.wrapping,
        format: key.keyformat.number(),
        iters: key.pbkdf2_iters,
        salt: key.salt,
        root: Err(key.keylocation),
    }
}

/// A checked change of a key.
pub(in crate::dsl) struct KeyChange {
    /// The encryption root until now.
    from: ObjectId,
    /// The encryption root from now on.
    to: ObjectId,
    /// How keys are wrapped anew; `None` if they stay as they are.
    plan: Option<KeyPlan>,
    /// The new `keylocation`; `Some(None)`: none any more.
    location: Option<Option<String>>,
}

impl TaskCx<'_> {
    /// Gives a new dataset its keys (OpenZFS: `dsl_crypto_key_create_sync`).
    pub(in crate::dsl) fn put_key(&self, dir: ObjectId, id: ObjectId, plan: KeyPlan) -> Result<(), Error> {
        let (spa, mos, tx) = (self.spa, self.mos, self.tx);
        let (mut master, mut hmac) = ([0; 32], [0; 64]);
        spa.env().fill_random(&mut master);
        spa.env().fill_random(&mut hmac);
        let guid = spa.env().random_u64();
        let broken = |source| Error::Key { name: id.to_string(), source };
        let key = DatasetKey::new(plan.cipher, Guid(guid), KEY_VERSION, &master, &hmac).map_err(broken)?;
        let object = mos.new_zap(tx, ObjectType::OTN_ZAP_METADATA)?;
        let root = match &plan.root {
            Ok(root) => *root,
            Err(_) => dir,
        };
        mos.put_wrapped(tx, object, &self.wrap(&key, &plan)?, plan.form(), root)?;
        let zap = mos.zap(object)?;
        zap.add_u64(tx, KEY_REFCOUNT, 1)?;
        zap.add_u64(tx, "DSL_CRYPTO_VERSION", KEY_VERSION)?;
        spa.zapify(mos, tx, dir)?.add_id(tx, dir_keys::CRYPTO_KEY_OBJ, object)?;
        spa.activate_dataset_feature(mos, tx, id, "encryption")?;
        spa.zio().keys().insert(id, Arc::new(key));
        if let Err(location) = plan.root {
            spa.zio().keys().insert_wrapping(dir, plan.wrapping);
            spa.store_prop(mos, tx, &mos.live(id)?, "keylocation", Put::Local(&Value::String(location)))?;
        }
        Ok(())
    }

    fn wrap(&self, key: &DatasetKey, plan: &KeyPlan) -> Result<WrappedKey, Error> {
        let mut iv = [0; 12];
        self.spa.env().fill_random(&mut iv);
        key.wrap(&plan.wrapping, iv).map_err(|source| Error::Key { name: key.guid().to_string(), source })
    }

    /// Shares the key object of `origin` with its clone (OpenZFS: `dsl_crypto_key_clone_sync`).
    pub(in crate::dsl) fn share_key(&self, origin: &Live, dir: ObjectId, id: ObjectId) -> Result<(), Error> {
        let (spa, mos, tx) = (self.spa, self.mos, self.tx);
        let Some((object, _)) = mos.key_uses(origin.phys.dir_obj)? else { return Ok(()) };
        mos.zap(object)?.increment(tx, KEY_REFCOUNT, 1)?;
        spa.zapify(mos, tx, dir)?.add_id(tx, dir_keys::CRYPTO_KEY_OBJ, object)?;
        spa.share_loaded_key(origin.id, id);
        Ok(())
    }

    /// OpenZFS: `spa_keystore_change_key_check`.
    fn plan_change(&self, name: &str, ds: &Live, change: ChangeKey) -> Result<KeyChange, Error> {
        let mos = self.mos;
        let invalid = |why| refused(name, Refusal::Invalid(why));
        let dir = ds.phys.dir_obj;
        let info = mos.key_info(dir)?.ok_or_else(|| Error::NotEncrypted { name: name.to_string() })?;
        let phys = mos.dir_phys(dir)?;
        if phys.origin_obj.is_some() && Some(phys.origin_obj) != self.spa.origin_snapshot(mos)? {
            return Err(invalid("a clone always has its origin's key"));
        }
        let (from, loaded) = (info.root_dir, |root| self.spa.zio().keys().wrapping(root).is_some());
        let is_root = from == dir;
        let above = || match phys.parent_obj {
            ObjectId::NONE => Err(invalid("the pool's own dataset has nothing to inherit from")),
            parent => mos.key_info(parent)?.ok_or_else(|| invalid("the parent is not encrypted")),
        };
        Ok(match change {
            ChangeKey::Inherit | ChangeKey::ForceInherit if !is_root => {
                return Err(invalid("it inherits its key already"));
            }
            ChangeKey::ForceInherit => {
                let to = above()?.root_dir;
                if to == dir {
                    return Err(invalid("the parent has its key from this dataset"));
                }
                KeyChange { from, to, plan: None, location: Some(None) }
            }
            ChangeKey::Inherit => {
                let above = above()?;
                if above.root_dir == dir {
                    return Err(invalid("the parent has its key from this dataset"));
                }
                if !loaded(from) {
                    return Err(refused(name, Refusal::KeyUnavailable));
                }
                let plan = Some(self.spa.plan_under(name, &above)?);
                KeyChange { from, to: above.root_dir, plan, location: Some(None) }
            }
            ChangeKey::ForceNew if is_root => return Err(invalid("it is an encryption root already")),
            ChangeKey::ForceNew => KeyChange { from, to: dir, plan: None, location: Some(Some("prompt".to_string())) },
            ChangeKey::NewRoot(key) => {
                check_key(name, &key)?;
                if !loaded(from) {
                    return Err(refused(name, Refusal::KeyUnavailable));
                }
                let location = Some(Some(key.keylocation.clone()));
                KeyChange { from, to: dir, plan: Some(plan_of(key)), location }
            }
        })
    }

    fn change_keys(&self, ds: &Live, step: &KeyChange) -> Result<(), Error> {
        let (spa, mos, tx) = (self.spa, self.mos, self.tx);
        let dir = ds.phys.dir_obj;
        let changed = self.keys_of_heirs(dir, step)?;
        if let Some(location) = &step.location {
            let value = location.clone().map(Value::String);
            let put = value.as_ref().map_or(Put::Revert, Put::Local);
            spa.store_prop(mos, tx, ds, "keylocation", put)?;
        }
        self.store_keys(step, &changed)?;
        let keys = spa.zio().keys();
        if step.from == dir && step.to != dir {
            keys.remove_wrapping(dir);
        }
        if let Some(plan) = step.plan.as_ref().filter(|_| step.to == dir) {
            keys.insert_wrapping(dir, plan.wrapping.clone());
        }
        spa.log_live(mos, tx, ds, "change key", " ")
    }

    /// Rewraps the keys of directory `dir` and of all that inherit them; `None` where they stay as they are. Returns none unless all can be
    /// unwrapped.
    fn keys_of_heirs(&self, dir: ObjectId, step: &KeyChange) -> Result<Vec<(ObjectId, Option<WrappedKey>)>, Error> {
        let old = self.spa.zio().keys().wrapping(step.from);
        let heirs = self.mos.heirs(dir, step.from, self.spa.origin_snapshot(self.mos)?)?;
        let changed = heirs.into_iter().map(|info| {
            let wrong = |source| Error::Key { name: dir.to_string(), source };
            let wrapped = match (&step.plan, &old) {
                (Some(plan), Some(old)) => Some(self.wrap(&info.wrapped.unwrap(old).map_err(wrong)?, plan)?),
                (Some(_), None) => return Err(Error::Bug(format!("the key of directory {} is not loaded", step.from))),
                (None, _) => None,
            };
            Ok((info.object, wrapped))
        });
        changed.collect()
    }

    fn store_keys(&self, step: &KeyChange, changed: &[(ObjectId, Option<WrappedKey>)]) -> Result<(), Error> {
        let (mos, tx) = (self.mos, self.tx);
        for (object, wrapped) in changed {
            match (wrapped, &step.plan) {
                (Some(wrapped), Some(plan)) => mos.put_wrapped(tx, *object, wrapped, plan.form(), step.to)?,
                _ => mos.zap(*object)?.update_id(tx, "DSL_CRYPTO_ROOT_DDOBJ", step.to)?,
            }
        }
        Ok(())
    }

    /// Moves the encryption root from directory `from` to `to`, its clone that is promoted; no key changes.
    pub(in crate::dsl) fn move_root(&self, from: ObjectId, to: ObjectId) -> Result<(), Error> {
        let step = KeyChange { from, to, plan: None, location: None };
        self.store_keys(&step, &self.keys_of_heirs(from, &step)?)?;
        let keys = self.spa.zio().keys();
        if let Some(key) = keys.wrapping(from) {
            keys.insert_wrapping(to, key);
            keys.remove_wrapping(from);
        }
        Ok(())
    }
}

impl Mos {
    /// The keys of directory `dir` and of all that inherit them from directory `root`, including those below clones: a clone has the key object of
    /// its origin (OpenZFS: `spa_keystore_change_key_sync_impl`). `origin` is the snapshot that all datasets descend from.
    fn heirs(&self, dir: ObjectId, root: ObjectId, origin: Option<ObjectId>) -> Result<Vec<KeyInfo>, Error> {
        if dir == root {
            // those too to which no way leads from the root: OpenZFS leaves them behind, with a key that opens them no more
            let (all, mut objects) = (self.under_root(root)?, BTreeSet::new());
            return Ok(all.into_iter().map(|(_, info)| info).filter(|info| objects.insert(info.object)).collect());
        }
        let (mut heirs, mut seen, mut todo) = (Vec::new(), BTreeSet::new(), vec![(dir, false)]);
        while let Some((dir, by_origin)) = todo.pop() {
            let Some(info) = self.key_info(dir)?.filter(|_| seen.insert((dir, by_origin))) else { continue };
            let phys = self.dir_phys(dir)?;
            let is_clone = phys.origin_obj.is_some() && Some(phys.origin_obj) != origin;
            if !by_origin {
                if info.root_dir != root || is_clone {
                    continue;
                }
                heirs.push(info);
            }
            let children = mos::named_entries(&self.zap(phys.child_dir_zapobj)?)?;
            let children = children.into_iter().filter(|(name, _)| !name.starts_with(['$', '%']));
            todo.extend(children.map(|(_, child)| (child.id(), false)));
            if let Some(clones) = self.zap_if(phys.clones)? {
                for entry in clones.entries()? {
                    todo.push((self.dataset_phys(entry?.value.id())?.dir_obj, true));
                }
            }
        }
        Ok(heirs)
    }

    /// All directories that have their key from directory `root`, wherever they are, itself included.
    pub(in crate::dsl) fn under_root(&self, root: ObjectId) -> Result<Vec<(ObjectId, KeyInfo)>, Error> {
        let (mut found, mut seen) = (Vec::new(), BTreeSet::new());
        let mut todo: Vec<ObjectId> = self.id_of("root_dataset")?.into_iter().collect();
        while let Some(dir) = todo.pop() {
            if !seen.insert(dir) {
                return Err(mos::two_names(dir));
            }
            let children = mos::child_dirs(&self.zap(self.dir_phys(dir)?.child_dir_zapobj)?)?;
            todo.extend(children.into_iter().filter(|(name, _)| !name.starts_with('$')).map(|(_, child)| child));
            if let Some(info) = self.key_info(dir)?.filter(|info| info.root_dir == root) {
                found.push((dir, info));
            }
        }
        Ok(found)
    }
}
