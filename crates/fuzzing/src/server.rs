//! Frames of the server's protocol: headers, and the body of each kind, from a stranger, an owner and a server.

use serve::frame::{HEADER, Header, Kind};
use serve::message::{Answer, Bounds, Call, Hello, Run, decode_signal};

/// Frames one after the other, as a connection has them.
///
/// # Panics
/// On a bug in the library: what was decoded encodes to something else.
pub fn fuzz_server(data: &[u8]) {
    let mut rest = data;
    while let Some((head, more)) = rest.split_first_chunk::<HEADER>() {
        let Ok(header) = Header::decode(head) else { break };
        assert_eq!(header.encode(), *head, "a header encodes differently");
        let body = more.split_at_checked(header.len as usize).map_or(more, |(body, _)| body);
        [Bounds::OTHERS, Bounds::OWNER, Bounds::SERVER].iter().for_each(|bounds| decode(&header, body, bounds));
        rest = more.get(body.len()..).unwrap_or_default();
    }
}

fn decode(header: &Header, body: &[u8], bounds: &Bounds) {
    // a packed list of this size takes memory within its limits, whatever it claims
    match Kind::of(header.kind) {
        Some(Kind::Hello) => {
            if let Ok(hello) = Hello::decode(body, bounds) {
                let again = hello.encode().expect("a hello that was decoded is packed");
                assert!(Hello::decode(&again, bounds).is_ok_and(|again| again == hello));
            }
        }
        Some(Kind::Call) => {
            if let Ok(Call { ioc, name, input }) = Call::decode(body, bounds) {
                let _checked = ioc.check(&input);
                let _pool = ioc.pool_of(&name);
                let again = Call::encode(ioc, &name, &input).expect("a request that was decoded is packed");
                // the limits count its lists otherwise if they were packed by another program
                let again = Call::decode(&again, &Bounds::SERVER);
                assert!(again.is_ok_and(|again| again.ioc == ioc && again.name == name));
            }
        }
        Some(Kind::Answer) => {
            if let Ok(answer) = Answer::decode(body, bounds) {
                let errno = answer.errno;
                let again = answer.encode().expect("an answer that was decoded is packed");
                assert!(Answer::decode(&again, &Bounds::SERVER).is_ok_and(|again| again.errno == errno));
            }
        }
        Some(Kind::Run) => {
            if let Ok(run) = Run::decode(body, bounds) {
                let again = run.encode().expect("a command line that was decoded is packed");
                assert!(Run::decode(&again, &Bounds::SERVER).is_ok_and(|again| again.args == run.args));
            }
        }
        Some(Kind::Signal) => {
            let _signal = decode_signal(body, bounds);
        }
        Some(Kind::Cancel | Kind::End) | None => {}
    }
}
