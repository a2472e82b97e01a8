//! A package: streams one after the other (OpenZFS: `zfs_receive_package`, `recv_fix_encryption_hierarchy`).

use control::{Failed, Ioc};
use nvlist::NvList;

use super::{Input, Opening, Receive, check, find_by_guid, next};
use crate::error::{Failure, Outcome, failed};
use crate::names::Types;
use crate::zfs::ancestors;
use crate::zfs::listed::Listed;
use crate::zfs::select::{self, told};

/// Operations on keys (OpenZFS: `dcp_cmd_t`): makes an encryption root without rewrapping, or makes it none any more.
const FORCE_NEW_KEY: u64 = 4;
const FORCE_INHERIT: u64 = 5;

impl Receive<'_> {
    pub(super) fn package(mut self, input: &Input, opening: &Opening) -> Outcome {
        let cannot = |why: &str| failed(format!("cannot receive: {why}"));
        let list = match opening.payload.is_empty() {
            true => None,
            false => {
                Some(NvList::unpack(&opening.payload).map_err(|e| cannot(&format!("invalid backup stream ({e})")))?)
            }
        };
        let recursive = list.as_ref().is_some_and(|list| !list.contains("not_recursive"));
        if recursive && self.target.contains('@') {
            return Err(cannot("cannot specify snapshot name for multi-snapshot stream"));
        }
        if next(input)?.is_some() {
            return Err(cannot("invalid backup stream"));
        }
        let sent = opening.fs();
        let renames = list.as_ref().filter(|list| recursive && list.contains("fromsnap") && !self.options.dry);
        let top = self.replicated(&sent);
        let mut complete = true;
        if let Some(list) = renames {
            self.renames(&top, list)?;
        }
        let empty = NvList::new();
        while let Some(stream) = next(input)? {
            check(&stream.begin)?;
            self.one(input, &stream, &sent, Some(list.as_ref().unwrap_or(&empty)))?;
        }
        if let Some(list) = renames {
            // their new parents exist now
            complete = self.renames(&top, list)?;
        }
        if let (Some(top), Some(list)) =
            (self.top.clone(), list.filter(|list| list.contains("raw") && !self.options.dry))
        {
            self.keys(&top, &list)?;
        }
        self.finish()?;
        Ok(u8::from(!complete))
    }

    /// The name of the package's top here.
    fn replicated(&self, sent: &str) -> String {
        let rest = match (self.options.prefix, self.options.tail) {
            (false, _) => String::new(),
            (true, false) => sent.find('/').and_then(|at| sent.get(at..)).unwrap_or("").to_owned(),
            (true, true) => match sent.rfind('/') {
                Some(at) => sent.get(at..).unwrap_or("").to_owned(),
                None => format!("/{sent}"),
            },
        };
        format!("{}{rest}", self.target)
    }

    /// Makes the encryption roots the same as the sender's.
    fn keys(&self, top: &str, list: &NvList) -> Result<(), Failure> {
        if !ancestors::exists(top)? {
            return Ok(());
        }
        let Some(fss) = list.get_nvlist("fss") else { return Ok(()) };
        let mut heads = vec![select::find(top, Types::HEADS)?];
        while let Some(head) = heads.pop() {
            self.key(&head, top, fss)?;
            if !list.contains("not_recursive") {
                heads.extend(head.children().map_err(|e| failed(told(&e, head.name())))?);
            }
        }
        Ok(())
    }

    fn key(&self, head: &Listed, top: &str, fss: &NvList) -> Result<(), Failure> {
        let name = head.name();
        let read = |e: Failed| failed(told(&e, name));
        if !head.is_encrypted().map_err(read)? {
            return Ok(());
        }
        let guids = head.snapshot_guids().map_err(read)?;
        let Some((fs, _)) = guids.into_iter().find_map(|guid| find_by_guid(fss, guid)) else { return Ok(()) };
        let is_root = head.is_encryption_root().map_err(read)?;
        let control = self.session.control(name)?;
        let cannot = |e: control::Failed| failed(format!("cannot receive: encryption of {name}: {e}"));
        let force = |command: u64| {
            let mut input = NvList::new();
            input.insert("crypt_cmd", command);
            control.call(Ioc::ChangeKey, name, &input).map(drop).map_err(cannot)
        };
        if !fs.contains("is_encroot") {
            return if is_root && name != top { force(FORCE_INHERIT) } else { Ok(()) };
        }
        if !is_root && head.text("origin").map_err(read)?.is_none() {
            force(FORCE_NEW_KEY)?;
        }
        let Some(location) = fs.get_nvlist("props").and_then(|props| props.get_str("keylocation")) else {
            return Ok(());
        };
        let (mut input, mut props) = (NvList::new(), NvList::new());
        props.insert("keylocation", location);
        input.insert("props", props);
        control.call(Ioc::SetProp, name, &input).map(drop).map_err(cannot)
    }
}
