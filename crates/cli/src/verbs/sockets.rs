//! Where NBD is served: sockets, and the certificates of TLS.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;

use nbd::{Listener, Options, PORT, Tls};

use super::flags::{NBD_AT, TLS, TLS_CERTIFICATES, TLS_VERIFY_PEER};
use crate::args::Parsed;
use crate::console;
use crate::error::{Failure, cause, failed, usage};

/// How a server serves: what the options say of connections and TLS.
pub(super) fn options(parsed: &Parsed) -> Result<Options, Failure> {
    let defaults = Options::default();
    let connections = match parsed.text('c') {
        None => defaults.connections,
        Some(text) => text
            .parse()
            .ok()
            .filter(|number| *number > 0)
            .ok_or_else(|| usage(format!("--connections {text}: a number is expected")))?,
    };
    Ok(Options { connections, tls: tls(parsed)?, ..defaults })
}

/// The certificates, if there is TLS. Options of TLS are not passed over where there is none: who gives them counts on it.
fn tls(parsed: &Parsed) -> Result<Option<Tls>, Failure> {
    let (how, directory) = (parsed.text(TLS), parsed.value(TLS_CERTIFICATES).map(console::path));
    let required = match (how.as_deref(), &directory) {
        (Some("off"), Some(_)) => return Err(usage("--tls off: there is no TLS that --tls-certificates are for")),
        (Some("off"), None) if parsed.has(TLS_VERIFY_PEER) => {
            return Err(usage("--tls off: without TLS --tls-verify-peer has nobody show a certificate"));
        }
        (None, None) if parsed.has(TLS_VERIFY_PEER) => {
            return Err(usage("--tls-verify-peer: --tls-certificates DIR is expected"));
        }
        (Some("off"), None) | (None, None) => return Ok(None),
        (Some("on"), _) => false,
        (Some("require") | None, _) => true,
        (Some(other), _) => return Err(usage(format!("--tls {other}: off, on or require is expected"))),
    };
    let directory = directory.ok_or_else(|| usage("--tls: --tls-certificates DIR is expected"))?;
    let tls = Tls::load(&directory, required, parsed.has(TLS_VERIFY_PEER));
    tls.map(Some).map_err(|e| failed(format!("no TLS: {e}")))
}

/// Listens at all places that are named.
pub(super) fn listeners(parsed: &Parsed) -> Result<Vec<Listener>, Failure> {
    let mut listeners = Vec::new();
    for (option, value) in &parsed.options {
        let is_path = *option == 'u' || (*option == NBD_AT && value.to_string_lossy().contains('/'));
        let listener = match *option {
            'u' | NBD_AT if is_path => Listener::unix(&console::path(Path::new(value))),
            'l' | NBD_AT => Listener::tcp(address(&value.to_string_lossy())?),
            _ => continue,
        };
        let shown = value.to_string_lossy();
        listeners.push(listener.map_err(|e| failed(format!("cannot listen on '{shown}': {}", cause(&e))))?);
    }
    Ok(listeners)
}

/// Says where anybody in the network is let in.
pub(super) fn warn_of_strangers(listeners: &[Listener], options: &Options) {
    if options.tls.as_ref().is_some_and(Tls::knows_clients) {
        return;
    }
    for address in listeners.iter().filter_map(Listener::public_address) {
        eprintln!(
            "warning: whoever reaches {address} may read and write what is served there; with --tls=require and \
             --tls-verify-peer only who has a certificate"
        );
    }
}

/// An address of TCP: a name or number, and a port if it is another one than NBD's.
fn address(text: &str) -> Result<SocketAddr, Failure> {
    let with_port = text.parse::<SocketAddr>().ok();
    let number = || text.parse().ok().map(|ip| SocketAddr::new(ip, PORT));
    let found = with_port.or_else(number).map(Ok).or_else(|| {
        let mut resolved = match text.rsplit_once(':') {
            Some(_) => text.to_socket_addrs(),
            None => (text, PORT).to_socket_addrs(),
        };
        resolved.as_mut().map(Iterator::next).map_err(|e| cause(e)).transpose()
    });
    match found {
        Some(Ok(address)) => Ok(address),
        Some(Err(why)) => Err(failed(format!("cannot listen on '{text}': {why}"))),
        None => Err(failed(format!("cannot listen on '{text}': no such address"))),
    }
}
