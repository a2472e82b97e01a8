//! One stream (OpenZFS: `zfs_receive_one`).

use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use base::{Endian, Errno, Guid};
use control::{Failed, Ioc};
use nvlist::{NvList, Value as Nv};
use ondisk::send::{Begin, DRR_FLAG_CLONE, Header, Record, feature};
use pool::Kind;
use pool::prop::nicebytes;

use super::props::Into;
use super::words::{Tried, words};
use super::{INPUT, Input, Opening, Receive, find_by_guid, skip};
use crate::console;
use crate::error::{Failure, failed};
use crate::names::{self, Types, pool_of};
use crate::pools;
use crate::shown;
use crate::zfs::ancestors;
use crate::zfs::listed::{self, Listed, Wanted};
use crate::zfs::mounting::changes::{Change, Changes};
use crate::zfs::progress;
use crate::zfs::select::{self, told};
use crate::zfs::words::of_property;

/// The types of object sets in a stream (OpenZFS: `DMU_OST_ZFS`, `DMU_OST_ZVOL`).
const OST_ZFS: u32 = 2;
const OST_ZVOL: u32 = 3;
/// No encryption (OpenZFS: `ZIO_CRYPT_OFF`).
const CRYPT_OFF: u64 = 2;

/// The package's record of the stream's dataset.
struct Told {
    /// The properties that came with it.
    props: Option<NvList>,
    snap_props: Option<NvList>,
    holds: Option<NvList>,
    /// The guid of the parent dataset's snapshot.
    parent_snap: Guid,
}

impl Told {
    fn new(fss: Option<&NvList>, guid: u64, holds: bool) -> Told {
        let Some((fs, snap)) = fss.and_then(|fss| find_by_guid(fss, guid)) else {
            return Told { props: None, snap_props: None, holds: None, parent_snap: Guid(0) };
        };
        let mut props = fs.get_nvlist("props").cloned();
        // a dataset that is not an encryption root yet cannot have it: it is set with the hierarchy
        props.as_mut().and_then(|props| props.remove("keylocation"));
        let of_snap = |key: &str| fs.get_nvlist(key).and_then(|all| all.get_nvlist(snap)).cloned();
        Told {
            props,
            snap_props: of_snap("snapprops"),
            holds: if holds { of_snap("snapholds") } else { None },
            parent_snap: Guid(fs.get_u64("parentfromsnap").unwrap_or(0)),
        }
    }
}

/// The kind of a stream.
#[derive(Clone, Copy)]
struct Sort {
    raw: bool,
    resuming: bool,
    /// It creates a dataset.
    new_fs: bool,
    /// It resumes a stream that does.
    resumes_new: bool,
    incremental: bool,
}

impl Sort {
    /// Determines the kind; `clone`: the dataset starts as a clone here.
    fn of(begin: &Begin, clone: bool) -> Sort {
        let has = |flag: u64| begin.features() & flag != 0;
        let (resuming, new) = (has(feature::RESUMING), begin.fromguid.0 == 0 || clone);
        Sort {
            raw: has(feature::RAW),
            resuming,
            new_fs: new && !resuming,
            resumes_new: new && resuming,
            incremental: begin.fromguid.0 != 0,
        }
    }

    fn doing(self) -> &'static str {
        match (self.new_fs, self.resuming) {
            (true, _) => "cannot receive new filesystem stream",
            (_, true) => "cannot receive resume stream",
            _ => "cannot receive incremental stream",
        }
    }
}

impl Receive<'_> {
    /// Receives one stream; `sent` is the file system at the top of what was sent. `package` is the list of a
    /// package's datasets.
    pub(super) fn one(
        &mut self,
        input: &Input,
        opening: &Opening,
        sent: &str,
        package: Option<&NvList>,
    ) -> Result<(), Failure> {
        let begun = Instant::now();
        let begin = &opening.begin;
        let recursive = package.is_some_and(|list| !list.contains("not_recursive"));
        let told = Told::new(package.and_then(|list| list.get_nvlist("fss")), begin.toguid.0, self.keeps_holds());
        let mut target = self.name_for(&opening.name(), sent, recursive)?;
        let origin = self.origin(&target, begin.flags & DRR_FLAG_CLONE != 0, begin.fromguid)?;
        let sort = Sort::of(begin, origin.is_some());
        self.find_moved(&mut target, sort, &opening.name(), sent, told.parent_snap, begin.fromguid)?;
        let fs = target.split('@').next().unwrap_or("").to_owned();
        let kind = if begin.objset_type == OST_ZVOL { Kind::Volume } else { Kind::Filesystem };
        let existing = if ancestors::exists(&fs)? { Some(select::find(&fs, Types::HEADS)?) } else { None };
        match &existing {
            Some(head) => self.check_existing(head, sort, kind)?,
            None => self.check_new(&target, sort)?,
        }
        self.announce(&opening.name(), &target, sort)?;
        let top = self.top.get_or_insert_with(|| fs.clone()) == &fs;
        if !matches!(begin.objset_type, OST_ZFS | OST_ZVOL) {
            return Err(failed(format!("{}: invalid record type: 0x{}", sort.doing(), begin.objset_type)));
        }
        if self.options.dry {
            return skip(input);
        }
        let into = Into { name: &fs, kind, may_have_key: sort.new_fs && !sort.raw, top };
        let mut request = self.request(&target, &into, &told, origin.as_deref())?;
        let payloadlen = opening.payload.len() as u32;
        let record = Header { payloadlen, checksum: [0; 4], record: Record::Begin(begin.clone()) };
        request.insert("begin_record", Nv::ByteArray(record.encode(Endian::Little).to_vec()));
        request.insert("input_fd", INPUT);
        let control = self.session.control(&fs)?;
        // looked up now: the state that was opened may be overwritten by the receive
        let has_token =
            existing.as_ref().is_some_and(|head| head.text("receive_resume_token").ok().flatten().is_some());
        let progress = Arc::<stream::recv::Progress>::default();
        control.caller().files.begun(INPUT, input, opening.payload.clone(), progress.clone());
        // what is there is not there any more
        let mut mounts = match existing.as_ref().filter(|_| sort.new_fs) {
            Some(head) => Some(Changes::gather(self.session, head, Change::Name, self.options.force_unmount)?),
            None => None,
        };
        mounts.iter_mut().try_for_each(Changes::prefix)?;
        let receive = || control.call(Ioc::RecvNew, &fs, &request);
        let received = progress::drawn(self.options.verbose, &target, &progress.bytes, receive);
        // if it failed, that is what counts; else the rest is done before this is
        if !self.options.no_mount || received.is_err() {
            self.remounted(mounts.iter_mut().try_for_each(Changes::postfix));
        }
        let received = match received {
            Ok(received) => {
                received.get_nvlist("errors").into_iter().for_each(|errors| tell_props(&fs, errors));
                received
            }
            Err(e) => {
                // a package may contain snapshots that exist already
                if package.is_some() && self.is_there(&fs, begin.toguid)? {
                    if self.options.verbose {
                        println!("snap {target} already exists; ignoring");
                    }
                    return skip(input);
                }
                let tried = Tried {
                    doing: sort.doing(),
                    target: &target,
                    raw: sort.raw,
                    new_fs: sort.new_fs,
                    resumable: self.options.resumable,
                    has_token,
                };
                return Err(words(&e, &tried));
            }
        };
        self.mounts |= sort.new_fs || sort.resumes_new;
        self.finish_snapshot(&target, &told)?;
        if received.contains("ivset_diverged") {
            warn_of_iv_sets(&target);
        }
        warn_of_names(&target, &received);
        if self.options.verbose {
            let seconds = begun.elapsed().as_secs_f64().max(1e-9);
            let bytes = received.get_u64("read_bytes").unwrap_or(0);
            let rate = (bytes as f64 / seconds) as u64;
            println!("received {} stream in {seconds:.2} seconds ({}/sec)", nicebytes(bytes), nicebytes(rate));
        }
        Ok(())
    }

    /// Prints what is about to be done.
    fn announce(&self, name: &str, target: &str, sort: Sort) -> Result<(), Failure> {
        if self.options.verbose {
            println!(
                "{} {} stream of {} into {target}",
                if self.options.dry { "would receive" } else { "receiving" },
                if sort.incremental { "incremental" } else { "full" },
                name
            );
            console::stdout().flush()?;
        }
        Ok(())
    }

    /// The request to the pool.
    fn request(&self, target: &str, into: &Into<'_>, told: &Told, origin: Option<&str>) -> Result<NvList, Failure> {
        let mut props = told.props.clone().unwrap_or_default();
        let (mut local, key) = self.options.said.local(into, &mut props)?;
        if into.may_have_key && told.props.is_some() && !local.contains("encryption") {
            // a stream that is not raw has properties only of unencrypted datasets
            local.insert("encryption", CRYPT_OFF);
        }
        let mut request = NvList::new();
        request.insert("snapname", target);
        request.insert("props", props);
        request.insert("localprops", local);
        if let Some(origin) = origin {
            request.insert("origin", origin);
        }
        for (key, on) in [("force", self.options.force), ("resumable", self.options.resumable)] {
            if on {
                request.insert(key, ());
            }
        }
        if let Some(key) = &key {
            request.insert("hidden_args", key.hidden());
        }
        Ok(request)
    }

    fn keeps_holds(&self) -> bool {
        self.holds && !self.options.skip_holds
    }

    /// The snapshot to be created: the target that the user named, with a part of the sender's name.
    fn name_for(&self, name: &str, sent: &str, recursive: bool) -> Result<String, Failure> {
        let target = &self.target;
        let cannot = |why: String| failed(format!("cannot receive: {why}"));
        if self.options.prefix && target.contains('@') {
            let option = if self.options.tail { 'e' } else { 'd' };
            return Err(cannot(format!("invalid argument - snapshot not allowed with -{option}")));
        }
        let rest = if self.options.tail {
            match sent.rfind('/') {
                Some(at) => name.get(at..).unwrap_or("").to_owned(),
                None => format!("/{name}"),
            }
        } else if self.options.prefix {
            name.find('/').or_else(|| name.find('@')).and_then(|at| name.get(at..)).unwrap_or("").to_owned()
        } else if target.contains('@') {
            if recursive {
                return Err(cannot("cannot specify snapshot name for multi-snapshot stream".to_owned()));
            }
            String::new()
        } else {
            // a stream of a package belongs to a dataset at or below its top
            name.strip_prefix(sent).filter(|rest| rest.starts_with(['/', '@'])).unwrap_or("").to_owned()
        };
        let full = format!("{target}{rest}");
        names::check(&full, Types::SNAPSHOTS).map_err(|why| cannot(format!("invalid name '{full}': {why}")))?;
        Ok(full)
    }

    fn origin(&self, target: &str, clone: bool, from: Guid) -> Result<Option<String>, Failure> {
        if let Some(origin) = &self.options.origin {
            if self.options.verbose {
                println!("using provided clone origin {origin}");
            }
            return Ok(Some(origin.clone()));
        }
        if !clone {
            return Ok(None);
        }
        let found = self
            .by_guid(target, from)?
            .ok_or_else(|| failed(format!("cannot receive: local origin for clone {target} does not exist")))?;
        if self.options.verbose {
            println!("found clone origin {found}");
        }
        Ok(Some(found))
    }

    /// The name of the dataset or snapshot with this guid in the pool of `near`.
    fn by_guid(&self, near: &str, guid: Guid) -> Result<Option<String>, Failure> {
        let pool = pool_of(near);
        self.session.control(near)?;
        let Some(source) = pools::of_dataset(pool)? else { return Ok(None) };
        listed::with_guid(&source, near, guid).map_err(|e| failed(told(&e, near)))
    }

    /// Finds the dataset, or its parent, by the guid of its snapshot if it has another name here.
    fn find_moved(
        &self,
        target: &mut String,
        sort: Sort,
        name: &str,
        sent: &str,
        parent_snap: Guid,
        from: Guid,
    ) -> Result<(), Failure> {
        let fs = target.split('@').next().unwrap_or("").to_owned();
        if sort.new_fs {
            let Some((parent, last)) = target.rsplit_once('/') else { return Ok(()) };
            if parent_snap != Guid(0)
                && !ancestors::exists(parent)?
                && let Some(found) = self.by_guid(&fs, parent_snap)?
            {
                let above = found.split('@').next().unwrap_or("");
                *target = format!("{above}/{last}");
            }
            return Ok(());
        }
        let below = name.strip_prefix(sent).is_some_and(|rest| rest.starts_with('/'));
        if (self.options.prefix || below)
            && !ancestors::exists(&fs)?
            && let Some(found) = self.by_guid(&fs, from)?
        {
            let snap = target.split_once('@').map_or("", |(_, snap)| snap);
            *target = format!("{}@{snap}", found.split('@').next().unwrap_or(""));
        }
        Ok(())
    }

    fn check_existing(&self, head: &Listed, sort: Sort, kind: Kind) -> Result<(), Failure> {
        let name = head.name();
        let doing = sort.doing();
        let cannot = |why: String| Err(failed(format!("{doing}: {why}")));
        let read = |e: Failed| failed(told(&e, name));
        let inconsistent = head.is("inconsistent").map_err(read)?;
        let encrypted = head.is_encrypted().map_err(read)?;
        if sort.new_fs {
            if !self.options.force {
                return cannot(format!("destination '{name}' exists\nmust specify -F to overwrite it"));
            }
            if let Some(snap) = head.snapshots(&Wanted::default()).map_err(read)?.first() {
                return cannot(format!(
                    "destination has snapshots (eg. {})\nmust destroy them to overwrite it",
                    snap.name()
                ));
            }
            if kind == Kind::Volume && !name.contains('/') {
                return cannot(format!("destination {name} is the root dataset\ncannot overwrite with a ZVOL"));
            }
            if let (Kind::Volume, Some(child)) = (kind, head.children().map_err(read)?.first()) {
                return cannot(format!(
                    "destination has children (eg. {})\ncannot overwrite with a ZVOL",
                    child.name()
                ));
            }
            if head.text("origin").map_err(read)?.is_some() {
                return cannot(format!("destination '{name}' is a clone\nmust destroy it to overwrite it"));
            }
            if sort.raw || encrypted {
                return cannot(
                    "zfs receive -F cannot be used to destroy an encrypted filesystem or overwrite an unencrypted one \
                     with an encrypted one"
                        .to_owned(),
                );
            }
        } else if sort.resumes_new && !inconsistent && !self.options.force {
            return cannot(format!("Resuming recv on existing destination '{name}'\nmust specify -F to overwrite it"));
        } else if !encrypted && sort.raw && !inconsistent {
            return cannot("cannot perform raw receive on top of existing unencrypted dataset".to_owned());
        }
        Ok(())
    }

    fn check_new(&self, target: &str, sort: Sort) -> Result<(), Failure> {
        let fs = target.split('@').next().unwrap_or("");
        let doing = sort.doing();
        let Some((parent, _)) = fs.rsplit_once('/').filter(|_| sort.new_fs) else {
            return Err(failed(format!("{doing}: destination '{fs}' does not exist")));
        };
        if self.options.prefix && !self.options.tail && !self.options.dry {
            ancestors::make(self.session, fs, false)?;
        }
        match select::find(parent, Types::HEADS)?.kind().map_err(|e| failed(told(&e, parent)))? {
            Kind::Filesystem => Ok(()),
            _ => Err(failed(format!("{doing}: parent '{parent}' is not a filesystem"))),
        }
    }

    fn is_there(&self, fs: &str, guid: Guid) -> Result<bool, Failure> {
        if !ancestors::exists(fs)? {
            return Ok(false);
        }
        let guids = select::find(fs, Types::HEADS)?.snapshot_guids().map_err(|e| failed(told(&e, fs)))?;
        Ok(guids.contains(&guid.0))
    }

    /// Sets properties and holds of the snapshot. A failure to set one of them is harmless.
    fn finish_snapshot(&self, target: &str, told: &Told) -> Result<(), Failure> {
        let control = self.session.control(target)?;
        if let Some(props) = told.snap_props.as_ref().filter(|props| !props.is_empty()) {
            let mut input = NvList::new();
            input.insert("props", props.clone());
            input.insert("received", ());
            if let Err(e) = control.call(Ioc::SetProp, target, &input) {
                eprintln!("Warning: cannot set properties of {target}: {e}");
            }
        }
        for (tag, _) in told.holds.iter().flatten() {
            let (mut input, mut holds) = (NvList::new(), NvList::new());
            holds.insert(target, tag);
            input.insert("holds", holds);
            if let Err(e) = control.call(Ioc::Hold, pool_of(target), &input) {
                eprintln!("Warning: cannot hold {target}: {e}");
            }
        }
        Ok(())
    }
}

/// Warns of names in the stream that cannot be looked up here.
fn warn_of_names(target: &str, received: &NvList) {
    let kinds = [
        (
            "names_too_long",
            "too long when normalized",
            "no file of such a name can be made, and OpenZFS can neither open nor remove it. 'zuse mv' renames it.",
        ),
        (
            "names_same",
            "the same as another name of the directory",
            "only one of the files can be opened by this name, until it is renamed or removed.",
        ),
    ];
    for (key, what, so) in kinds {
        let Some(names) = received.get_nvlist(key) else { continue };
        let path = match names.get_byte_array("dir_path") {
            Some(path) => path.strip_suffix(b"/").unwrap_or(path).to_vec(),
            None => format!("(object {})", names.get_u64("dir").unwrap_or(0)).into_bytes(),
        };
        let path = shown::name(&[path.as_slice(), b"/", names.get_byte_array("name").unwrap_or_default()].concat());
        let count = match names.get_u64("count") {
            Some(count) if count > 1 => format!("{count} names that are"),
            _ => "one name that is".to_owned(),
        };
        eprintln!(
            "Warning: {target} has {count} {what}\n(properties normalization and casesensitivity), first '{path}':\n{so}"
        );
    }
}

fn tell_props(fs: &str, errors: &NvList) {
    for (name, value) in errors {
        if let Nv::Int32(n) = value {
            let error = Box::new(control::Error::Invalid(format!("errno {n}")));
            let e = control::Failed { errno: Errno::from_raw(*n), out: Box::default(), error };
            eprintln!("cannot receive {name} property on {fs}: {}", of_property(name, &e, e.errno));
        }
    }
}

fn warn_of_iv_sets(target: &str) {
    eprintln!(
        "Warning: the snapshot '{target}' is based on was received as a raw stream, but\nthis incremental is not raw; it \
         re-encrypts the data with a new IV set,\nso a later raw (zfs send -w) incremental based on it will fail with \
         an\nIV set guid mismatch. Send this incremental raw as well to keep raw\nreplication working."
    );
}
