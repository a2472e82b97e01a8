//! Streams received (OpenZFS: `zfs_ioc_recv_new`).

use std::sync::PoisonError;

use nvlist::{NvList, Value as Nv};
use pool::{PropSource, Value};
use stream::recv::{self, Received, RecvArgs};
use zpl::UnreachableNames;

use crate::caller::Input;
use crate::decode::{Props, require_str};
use crate::keys::new_key;
use crate::props::check_settable;
use crate::{Control, Error, Failed};

impl Control {
    /// Receives a stream. Answers with the bytes that were read, the errno of each property that could not be set, and what cannot be looked up:
    /// `names_too_long`, `names_same`. A target that failed is as it was, or, with `resumable`, can be resumed.
    pub(crate) fn receive(&self, input: &NvList) -> Result<NvList, Failed> {
        let target = require_str(input, "snapname")?;
        self.check_pool(target)?;
        if input.contains("heal") {
            return Err(Error::NotSupported("heal".to_owned()).into());
        }
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
        let number = input.get_i32("input_fd").unwrap_or(-1);
        let from = self.caller.files.source(number).ok_or(Error::BadFile(number))?;
        let record = input.get_byte_array("begin_record").unwrap_or_default();
        let received = self.receive_from(&from, record, &args);
        let received = received.map_err(|e| if self.cancel.is_cancelled() { Error::Cancelled } else { e })?;
        let came = came_props(input.get_nvlist("props"));
        let mut out = NvList::new();
        out.insert("read_bytes", received.bytes);
        if received.ivset_diverged {
            out.insert("ivset_diverged", ());
        }
        for (key, names) in
            [("names_too_long", &received.out_of_reach.too_long), ("names_same", &received.out_of_reach.same)]
        {
            if let Some(names) = unreachable(names) {
                out.insert(key, names);
            }
        }
        out.insert("errors", self.set_received(fs, came, local, inherit));
        Ok(out)
    }

    fn receive_from(&self, from: &Input, record: &[u8], args: &RecvArgs) -> Result<Received, Error> {
        let broken = |e: stream::Error| Error::Receive(e.into());
        let mut source = from.source.lock().unwrap_or_else(PoisonError::into_inner);
        // requests that read from it take turns
        if let Some(slot) = &from.cancel {
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = self.cancel.clone();
        }
        let (begin, payload) = match &from.begun {
            Some(payload) => (stream::begin_record(record).map_err(broken)?, payload.clone()),
            None => source.begin(record).map_err(broken)?,
        };
        recv::receive(&self.spa, &mut source, &begin, &payload, args, &from.progress).map_err(Error::Receive)
    }

    /// Sets what came with a stream and what the user said with it. The errno of each that could not be set.
    fn set_received(
        &self,
        fs: &str,
        came: Vec<(String, Result<Value, Error>)>,
        local: Props,
        inherit: Vec<String>,
    ) -> NvList {
        let mut errors = NvList::new();
        let set = |errors: &mut NvList, name: &str, value: Value, source| {
            let one = [(name.to_owned(), value)];
            let done = check_settable(&self.spa, &one).and_then(|()| Ok(self.spa.set_props(fs, &one, source)?));
            if let Err(e) = done {
                errors.insert(name, e.errno().raw());
            }
        };
        for (name, value) in came {
            match value {
                Ok(value) => set(&mut errors, &name, value, PropSource::Received),
                Err(e) => errors.insert(&name, e.errno().raw()),
            }
        }
        local.values.into_iter().for_each(|(name, value)| set(&mut errors, &name, value, PropSource::Local));
        for name in inherit {
            if let Err(e) = self.spa.inherit_prop(fs, &name, false) {
                errors.insert(&name, e.errno().raw());
            }
        }
        errors
    }
}

/// How many names cannot be looked up, and the first, with the object and the path of its directory.
fn unreachable(names: &UnreachableNames) -> Option<NvList> {
    let first = names.first.as_ref()?;
    let mut list = NvList::new();
    list.insert("count", names.count);
    list.insert("name", Nv::ByteArray(first.name.clone()));
    list.insert("dir", first.dir.0);
    if let Some(path) = &first.dir_path {
        list.insert("dir_path", Nv::ByteArray(path.clone()));
    }
    Some(list)
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
