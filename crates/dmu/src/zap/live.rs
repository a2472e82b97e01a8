//! One state for all handles of a writable ZAP.
//!
//! The decoded form of a ZAP's blocks (the header, the pointer table, the order of a micro ZAP) must change together with
//! them, through whichever handle they are changed. So in a writable object set all open handles of an object share one
//! state, found here by object set and object. It lives as long as any handle. (OpenZFS attaches it to the first block's
//! buffer.)

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use base::ObjectId;
use parking_lot::{Mutex, RwLock};

use super::{Body, Inner, Zap};
use crate::{Error, Object};

const SHARDS: usize = 64;

/// The address of the object set, which lives as long as any handle of its objects; the object number.
type Key = (usize, ObjectId);

static OPEN: [Mutex<BTreeMap<Key, Weak<Inner>>>; SHARDS] = [const { Mutex::new(BTreeMap::new()) }; SHARDS];

fn key(object: &Object) -> Key {
    (Arc::as_ptr(object.objset()).addr(), object.id())
}

fn shard(key: Key) -> &'static Mutex<BTreeMap<Key, Weak<Inner>>> {
    let mixed = (key.0 as u64 ^ key.1.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    #[allow(clippy::indexing_slicing)] // a remainder
    &OPEN[(mixed >> 32) as usize % SHARDS]
}

/// The ZAP in `object`, shared with its other handles.
pub(super) fn open(object: Object) -> Result<Zap, Error> {
    let key = key(&object);
    let inner = {
        let mut open = shard(key).lock();
        match open.get(&key).and_then(Weak::upgrade) {
            Some(inner) => inner,
            None => {
                let inner = Arc::new(Inner::new(object, true));
                open.insert(key, Arc::downgrade(&inner));
                inner
            }
        }
    };
    // from here on all changes go through this state: what is read now cannot be stale
    if inner.body.get().is_none() {
        let _alone = inner.loading.lock();
        if inner.body.get().is_none() {
            let body = Body::read(&inner.object, true)?;
            let _ = inner.body.set(RwLock::new(body));
        }
    }
    Ok(Zap(inner))
}

/// The ZAP just created in `object`. Handles of a freed object that had the same number are no longer valid.
pub(super) fn made(object: Object, body: Body) -> Zap {
    let key = key(&object);
    let inner = Arc::new(Inner::new(object, true).with(body));
    shard(key).lock().insert(key, Arc::downgrade(&inner));
    Zap(inner)
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.live {
            return;
        }
        let key = key(&self.object);
        let mut open = shard(key).lock();
        if open.get(&key).is_some_and(|known| std::ptr::eq(known.as_ptr(), self)) {
            open.remove(&key);
        }
    }
}
