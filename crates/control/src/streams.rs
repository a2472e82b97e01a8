//! Streams received (OpenZFS: `zfs_ioc_recv_new`).

use std::io::Read;

use nvlist::{NvList, Value as Nv};
use ondisk::send::Begin;
use pool::{PropSource, Value};
use stream::Reader;
use stream::recv::{self, Progress, Received, RecvArgs};

use crate::decode::{Props, require_str};
use crate::keys::new_key;
use crate::props::check_settable;
use crate::{Control, Error, Failed};

impl Control {
    /// Receives the stream that `begin` and its `payload` open, the rest from `reader`. `input` is that of OpenZFS's request: `snapname`, and
    /// optionally `origin`, `force`, `resumable`, `hidden_args`, `props` (they came with the stream), `localprops` (said by the user; one without a
    /// value is inherited). Gives what was received, and the errno of each property that could not be set.
    ///
    /// # Errors
    /// [`Failed`]: then the target is as it was, or, with `resumable`, can be resumed.
    pub fn receive<R: Read + Send>(
        &self,
        input: &NvList,
        reader: &mut Reader<R>,
        begin: &Begin,
        payload: &[u8],
        progress: &Progress,
    ) -> Result<(Received, NvList), Failed> {
        let target = require_str(input, "snapname")?;
        self.check_pool(target)?;
        let fs = target.split('@').next().unwrap_or(target);
        let (mut local, inherit) = local_props(input.get_nvlist("localprops"))?;
        let (key, without_key) = new_key(&mut local, input.get_nvlist("hidden_args"))?;
        let args = RecvArgs {
            target: target.to_owned(),
            origin: input.get_str("origin").map(str::to_owned),
            force: input.contains("force"),
            resumable: input.contains("resumable"),
            key,
            without_key,
        };
        let came = came_props(input.get_nvlist("props"));
        let received = recv::receive(self.spa(), reader, begin, payload, &args, progress).map_err(Error::Receive)?;
        self.note_change();
        let mut errors = NvList::new();
        let set = |errors: &mut NvList, name: &str, value: Value, source| {
            let one = [(name.to_owned(), value)];
            let done = check_settable(self.spa(), &one).and_then(|()| Ok(self.spa().set_props(fs, &one, source)?));
            if let Err(e) = done {
                errors.insert(name, e.errno());
            }
        };
        for (name, value) in came {
            match value {
                Ok(value) => set(&mut errors, &name, value, PropSource::Received),
                Err(e) => errors.insert(&name, e.errno()),
            }
        }
        local.values.into_iter().for_each(|(name, value)| set(&mut errors, &name, value, PropSource::Local));
        for name in inherit {
            if let Err(e) = self.spa().inherit_prop(fs, &name, false) {
                errors.insert(&name, e.errno());
            }
        }
        Ok((received, errors))
    }

    /// Drops what an interrupted receive left for `fs`.
    ///
    /// # Errors
    /// [`Failed`] with EINVAL if there is nothing of the kind.
    pub fn discard_receive(&self, fs: &str) -> Result<(), Failed> {
        self.check_pool(fs)?;
        recv::discard(self.spa(), fs).map_err(Error::Receive)?;
        self.note_change();
        Ok(())
    }
}

/// What came with the stream. One that cannot be keeps no other from being set.
fn came_props(list: Option<&NvList>) -> Vec<(String, Result<Value, Error>)> {
    let one = |(name, value): (&str, &Nv)| {
        let mut single = NvList::new();
        single.insert(name, value.clone());
        match Props::of_dataset(Some(&single)) {
            // quotas of users do not come with streams
            Ok(props) => props.values.into_iter().next().map(|(name, value)| (name, Ok(value))),
            Err(e) => Some((name.to_owned(), Err(e))),
        }
    };
    list.into_iter().flatten().filter_map(one).collect()
}

/// The properties that are set, and those that are inherited.
fn local_props(list: Option<&NvList>) -> Result<(Props, Vec<String>), Error> {
    let (mut set, mut inherit) = (NvList::new(), Vec::new());
    for (name, value) in list.into_iter().flatten() {
        match value {
            Nv::Boolean => inherit.push(name.to_owned()),
            value => set.insert(name, value.clone()),
        }
    }
    Ok((Props::of_dataset(Some(&set))?, inherit))
}
