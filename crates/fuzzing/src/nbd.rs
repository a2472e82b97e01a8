//! What a client of the NBD server sends: the negotiation, and then requests, to exports in memory.

use std::sync::Arc;

use nbd::memory::Memory;
use nbd::negotiate::{Outcome, Security, negotiate, negotiate_secured};
use nbd::transmit::{Bounds, Watch, transmit};
use nbd::{Budget, Export, Named};

/// The size of the exports: no whole number of blocks, and small, as a request of a few bytes reads all of it.
const SIZE: u64 = (20 << 10) + 7;
/// All requests are carried out by the thread that reads them, one after the other.
const BOUNDS: Bounds = Bounds { threads: 0, requests: 1, bytes: 1 << 20 };
/// Bytes of the server's greeting.
const GREETING: usize = 18;

/// The bytes of a connection.
///
/// # Panics
/// On a bug in the library: what it sends is malformed.
pub fn fuzz_nbd(data: &[u8]) {
    let named = |name: &str, export: Memory| Named {
        name: name.to_owned(),
        description: "in memory".to_owned(),
        export: Arc::new(export) as Arc<dyn Export>,
    };
    let exports = vec![named("disk", Memory::new(SIZE)), named("still", Memory::new(SIZE).read_only())];
    let (mut input, mut said) = (data, Vec::new());
    let mut negotiated = negotiate(&mut input, &mut said, &exports, Security::Offered);
    if let Ok(Outcome::StartTls { no_zeroes }) = negotiated {
        // as if the handshake had taken place
        negotiated = negotiate_secured(&mut input, &mut said, &exports, no_zeroes);
    }
    let is_framed = match &negotiated {
        // an answer to NBD_OPT_EXPORT_NAME has no header
        Ok(Outcome::Chosen(chosen)) => chosen.by_go(),
        Ok(_) => true,
        Err(_) => false,
    };
    assert!(!is_framed || options_end(&said), "replies to options are malformed");
    let Ok(Outcome::Chosen(chosen)) = negotiated else { return };
    let mut replies = Vec::new();
    let watch = Watch { is_ending: &|| false, is_gone: &|| false };
    let _ended = transmit(&mut input, &mut replies, &chosen, (BOUNDS, &Arc::new(Budget::new(1 << 20, 1))), watch);
    assert!(!chosen.is_structured() || replies_end(&replies), "replies are malformed");
}

/// Returns whether replies to options follow each other up to the end.
fn options_end(said: &[u8]) -> bool {
    let Some(mut rest) = said.get(GREETING..) else { return false };
    while let Some((head, more)) = rest.split_first_chunk::<20>() {
        let len = u32::from_be_bytes([head[16], head[17], head[18], head[19]]) as usize;
        let Some(more) = more.get(len..).filter(|_| head.starts_with(&0x0003_e889_0455_65a9_u64.to_be_bytes())) else {
            return false;
        };
        rest = more;
    }
    rest.is_empty()
}

/// Returns whether replies to requests follow each other up to the end, where none is simple and has data.
fn replies_end(replies: &[u8]) -> bool {
    let mut rest = replies;
    while let Some(magic) = rest.first_chunk::<4>() {
        let len = match u32::from_be_bytes(*magic) {
            0x6744_6698 => 16,
            0x668e_33ef => {
                let Some(len) = rest.get(16..20).and_then(|len| len.first_chunk::<4>()) else { return false };
                20 + u32::from_be_bytes(*len) as usize
            }
            _ => return false,
        };
        let Some(more) = rest.get(len..) else { return false };
        rest = more;
    }
    rest.is_empty()
}
