//! A pool whose devices repeat the fuzzer's bytes endlessly.

use std::io;
use std::sync::{Arc, OnceLock};

use base::Guid;
use nvlist::NvList;
use vdev::{Device, VdevConfig, VdevTree};
use zio::Zio;

/// A device of 1 TiB that repeats its bytes.
#[derive(Debug)]
struct Tape(Vec<u8>);

impl Device for Tape {
    fn size(&self) -> u64 {
        1 << 40
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let period = self.0.len() as u64;
        let Some(mut at) = offset.checked_rem(period).and_then(|at| usize::try_from(at).ok()) else {
            buf.fill(0);
            return Ok(());
        };
        for piece in buf.chunks_mut(self.0.len()) {
            let (front, back) = piece.split_at_mut(piece.len().min(self.0.len() - at));
            front.copy_from_slice(self.0.get(at..at + front.len()).unwrap_or_default());
            back.copy_from_slice(self.0.get(..back.len()).unwrap_or_default());
            at = (at + front.len() + back.len()) % self.0.len();
        }
        Ok(())
    }

    fn name(&self) -> String {
        "tape".to_owned()
    }
}

/// Opens a pool of two top-level vdevs of one device each, both with `bytes` from the start of their space on.
pub(crate) fn pool(bytes: &[u8]) -> Zio {
    static CONFIG: OnceLock<VdevConfig> = OnceLock::new();
    let config = CONFIG.get_or_init(|| {
        let node = |kind: &str, id: u64, guid: u64| {
            let mut list = NvList::new();
            list.insert("type", kind);
            list.insert("id", id);
            list.insert("guid", guid);
            list.insert("ashift", if guid == 10 { 9u64 } else { 12 });
            list.insert("asize", 1u64 << 39);
            list
        };
        let mut root = node("root", 0, 1);
        root.insert("children", vec![node("disk", 0, 10), node("disk", 1, 11)]);
        VdevConfig::parse(&root).unwrap_or_else(|e| panic!("the pool's own configuration: {e}"))
    });
    // block addresses count from the end of the front labels
    let mut turned = bytes.to_vec();
    let start = (4 << 20) % turned.len().max(1);
    turned.rotate_right(start);
    let device: Arc<dyn Device> = Arc::new(Tape(turned));
    let tree = VdevTree::open(config, &|_: Guid| Some(Arc::clone(&device)));
    let zio = Zio::new(Arc::new(tree.unwrap_or_else(|e| panic!("the pool does not open: {e}"))), 1 << 20);
    zio.set_salt([3; 32]);
    zio
}
