//! The objects that the unreplayed intent log of a file system refers to.

use std::collections::HashSet;
use std::ops::ControlFlow;

use base::ObjectId;
use ondisk::zil::Record;
use zil::Step;
use zpl::FileSystem;

/// The objects that the replay changes.
#[derive(Default)]
pub(crate) struct Touched(HashSet<ObjectId>);

impl Touched {
    pub(crate) fn contains(&self, object: ObjectId) -> bool {
        self.0.contains(&object)
    }

    pub(crate) fn any(&self) -> bool {
        !self.0.is_empty()
    }
}

/// Walks the log; returns nothing for snapshots and for fixtures whose list was not made after a replay.
pub(crate) fn touched(fixture: &str, fs: &FileSystem) -> Touched {
    let mut touched = Touched::default();
    if !fixture.starts_with("zil") || fs.is_snapshot() {
        return touched;
    }
    let mut add = |dir: ObjectId, name: Option<&[u8]>, object: ObjectId| {
        touched.0.extend([dir, object]);
        let named = name.and_then(|name| fs.lookup(dir, name).ok().flatten());
        touched.0.extend(named.map(|entry| entry.object));
    };
    zil::walk(fs.objset(), &mut |step| {
        let Step::Record { record, sealed } = step else { return ControlFlow::Continue(()) };
        assert!(!sealed, "the key is loaded");
        match record.decode().unwrap() {
            Record::Commit => {}
            Record::Create(c) => add(c.doid, None, c.foid),
            Record::Remove { doid, name } => add(doid, Some(name), doid),
            Record::Link { doid, link_obj, .. } => add(doid, None, link_obj),
            Record::Rename(r) => {
                add(r.sdoid, Some(r.src), r.tdoid);
                add(r.tdoid, Some(r.dst), r.whiteout.map_or(r.tdoid, |w| w.foid));
            }
            Record::Write(w) => add(w.foid, None, w.foid),
            Record::Truncate { foid, .. }
            | Record::AclV0 { foid, .. }
            | Record::Acl { foid, .. }
            | Record::SetSaXattr { foid, .. }
            | Record::CloneRange { foid, .. } => add(foid, None, foid),
            Record::SetAttr(s) => add(s.foid, None, s.foid),
        }
        ControlFlow::Continue(())
    });
    touched
}
