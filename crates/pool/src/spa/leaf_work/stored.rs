//! What the ZAP of a leaf has of the work on its free space (OpenZFS: `VDEV_LEAF_ZAP_INITIALIZE_*`, `VDEV_LEAF_ZAP_TRIM_*`).

use base::tunable;
use dmu::{Tx, Zap};
use ondisk::VDEV_LABEL_START_SIZE;

use crate::Error;

/// Work on the free space of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeafWork {
    /// It is overwritten (`zpool initialize`).
    Initialize,
    /// It is discarded (`zpool trim`).
    Trim,
}

/// The state of such work; the numbers are those on disk (OpenZFS: `vdev_initializing_state_t`, `vdev_trim_state_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LeafWorkState {
    /// It was never begun.
    #[default]
    None = 0,
    /// It is going on, or goes on when the pool is open and the device is there.
    Active = 1,
    /// It was ended.
    Canceled = 2,
    /// It goes on when it is asked to.
    Suspended = 3,
    /// All was done.
    Complete = 4,
}

impl LeafWorkState {
    fn from_number(number: u64) -> LeafWorkState {
        use LeafWorkState::{Active, Canceled, Complete, None, Suspended};
        [None, Active, Canceled, Suspended, Complete]
            .into_iter()
            .find(|state| *state as u64 == number)
            .unwrap_or_default()
    }
}

/// The work on a leaf, as its ZAP has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct StoredWork {
    /// Its state.
    pub state: LeafWorkState,
    /// The time at which it began, or came into that state.
    pub time: u64,
    /// Free space before this offset behind the labels is done.
    pub offset: u64,
    /// The pattern that free space is overwritten with.
    pub value: u64,
    /// The most bytes that are trimmed in a second; 0 for no limit.
    pub rate: u64,
    /// Whether metaslabs that were never used are left out of a trim.
    pub partial: bool,
    /// Whether nobody shall get at what was trimmed any more.
    pub secure: bool,
}

/// The keys of an offset (from the front of the device), a state and its time.
const INITIALIZE: [&str; 3] = [
    "com.delphix:next_offset_to_initialize",
    "com.delphix:vdev_initialize_state",
    "com.delphix:vdev_initialize_action_time",
];
const INITIALIZE_VALUE: &str = "org.openzfs:vdev_initialize_value";
const TRIM: [&str; 3] =
    ["org.zfsonlinux:next_offset_to_trim", "org.zfsonlinux:vdev_trim_state", "org.zfsonlinux:vdev_trim_action_time"];
const TRIM_OPTIONS: [&str; 3] =
    ["org.zfsonlinux:vdev_trim_rate", "org.zfsonlinux:vdev_trim_partial", "org.zfsonlinux:vdev_trim_secure"];

impl StoredWork {
    /// Reads it from the ZAP of a leaf.
    pub(crate) fn read(zap: &Zap, work: LeafWork) -> Result<StoredWork, Error> {
        let number = |key: &str| zap.lookup_u64(key).map(Option::unwrap_or_default);
        let [offset, state, time] = if work == LeafWork::Trim { TRIM } else { INITIALIZE };
        let mut stored = StoredWork {
            state: LeafWorkState::from_number(number(state)?),
            time: number(time)?,
            offset: number(offset)?.saturating_sub(VDEV_LABEL_START_SIZE),
            value: zap.lookup_u64(INITIALIZE_VALUE)?.unwrap_or_else(|| tunable::ZFS_INITIALIZE_VALUE.get()),
            ..StoredWork::default()
        };
        if work == LeafWork::Trim {
            let [rate, partial, secure] = TRIM_OPTIONS;
            (stored.rate, stored.partial, stored.secure) = (number(rate)?, number(partial)? != 0, number(secure)? != 0);
        }
        Ok(stored)
    }

    /// Writes it into the ZAP of a leaf; of work that was never begun nothing stays there.
    pub(super) fn put(&self, zap: &Zap, tx: &Tx, work: LeafWork) -> Result<(), Error> {
        let offset = if self.offset == 0 { 0 } else { self.offset.saturating_add(VDEV_LABEL_START_SIZE) };
        let (keys, values) =
            (if work == LeafWork::Trim { TRIM } else { INITIALIZE }, [offset, self.state as u64, self.time]);
        let more = match work {
            LeafWork::Initialize => vec![(INITIALIZE_VALUE, self.value)],
            LeafWork::Trim => {
                TRIM_OPTIONS.into_iter().zip([self.rate, self.partial.into(), self.secure.into()]).collect()
            }
        };
        for (key, value) in keys.into_iter().zip(values).chain(more) {
            match self.state {
                LeafWorkState::None => drop(zap.remove(tx, key)?),
                _ => zap.update_u64(tx, key, value)?,
            }
        }
        Ok(())
    }
}
