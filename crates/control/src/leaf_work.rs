//! Requests about the free space of devices: initialize, trim (OpenZFS: `zfs_ioc_pool_initialize`, `zfs_ioc_pool_trim`).

use base::{Errno, Guid};
use nvlist::NvList;
use pool::{LeafCommand, LeafOptions};

use crate::decode::require_list;
use crate::{Control, Error, Failed};

/// The keys of a request: what is to be done, and with which devices.
const INITIALIZE: [&str; 2] = ["initialize_command", "initialize_vdevs"];
const TRIM: [&str; 2] = ["trim_command", "trim_vdevs"];
/// The last number of a command (OpenZFS: `pool_initialize_func_t`, `pool_trim_func_t`).
const UNINIT: u64 = 3;

/// The command with this number.
fn command(number: Option<u64>, options: LeafOptions) -> Result<LeafCommand, Error> {
    match number {
        Some(0) => Ok(LeafCommand::Start(options)),
        Some(1) => Ok(LeafCommand::Cancel),
        Some(2) => Ok(LeafCommand::Suspend),
        Some(UNINIT) => Ok(LeafCommand::Uninit),
        _ => Err(Error::Invalid("no such command".to_owned())),
    }
}

/// The devices of a request, by whatever names they have there.
fn leaves(input: &NvList, key: &'static str) -> Result<Vec<Guid>, Error> {
    let guid = |value: &nvlist::Value| value.as_u64().map(Guid);
    let leaves: Option<Vec<Guid>> = require_list(input, key)?.iter().map(|(_, value)| guid(value)).collect();
    leaves.ok_or_else(|| Error::Invalid("a device that is no number".to_owned()))
}

/// The answer: the errno of each device that was refused, by its guid.
fn answer(refused: &[(Guid, Errno)], key: &str) -> Result<NvList, Failed> {
    let Some((guid, errno)) = refused.first() else { return Ok(NvList::new()) };
    let mut errors = NvList::new();
    refused.iter().for_each(|(guid, errno)| errors.insert(guid.0.to_string(), i64::from(errno.raw())));
    let mut out = NvList::new();
    out.insert(key, errors);
    let error = Error::Invalid(format!("device {guid}: {errno}"));
    Err(Failed { errno: Errno::EINVAL, out: Box::new(out), error: Box::new(error) })
}

impl Control {
    /// Begins, cancels, suspends or forgets the overwriting of the free space of devices, which goes on in the background.
    pub(crate) fn pool_initialize(&self, input: &NvList) -> Result<NvList, Failed> {
        let [number, key] = INITIALIZE;
        let options = LeafOptions { value: input.get_u64("initialize_value"), ..LeafOptions::default() };
        let command = command(input.get_u64(number), options)?;
        answer(&self.spa.initialize(&leaves(input, key)?, command)?, key)
    }

    /// Begins, cancels or suspends the trimming of the free space of devices, which goes on in the background.
    pub(crate) fn pool_trim(&self, input: &NvList) -> Result<NvList, Failed> {
        let [number, key] = TRIM;
        let options = LeafOptions {
            rate: input.get_u64("trim_rate").unwrap_or(0),
            secure: input.get_bool("trim_secure").unwrap_or(false),
            ..LeafOptions::default()
        };
        let command = match input.get_u64(number) {
            Some(UNINIT) => command(None, options),
            number => command(number, options),
        }?;
        answer(&self.spa.trim(&leaves(input, key)?, command)?, key)
    }
}
