//! Connections with TLS, and those that have to have it.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

#[path = "support/certificates.rs"]
mod certificates;
mod support;

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use nbd::memory::Memory;
use nbd::{Export, Options, Tls};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use support::*;

const INVALID: u32 = ERR + 3;
const TLS_REQD: u32 = ERR + 5;
const SIZE: u64 = 64 << 20;

type Secured = Client<StreamOwned<ClientConnection, UnixStream>>;

/// A server with the certificates of a directory.
fn served(dir: &Path, required: bool, verify_peer: bool) -> Served {
    let export: Arc<dyn Export> = Arc::new(Memory::new(SIZE));
    let tls = Some(Tls::load(dir, required, verify_peer).unwrap());
    Served::new(&[("x", export)], Options { tls, ..Options::default() })
}

/// Begins TLS. The first request shakes hands.
fn secure(mut client: Client, dir: &Path, has_certificate: bool) -> Secured {
    assert_eq!(client.option(STARTTLS, &[]), [(ACK, vec![])]);
    let certificates = |name: &str| -> Vec<CertificateDer<'static>> {
        CertificateDer::pem_file_iter(dir.join(name)).unwrap().map(Result::unwrap).collect()
    };
    let mut roots = RootCertStore::empty();
    certificates("ca-cert.pem").into_iter().for_each(|one| roots.add(one).unwrap());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots);
    let config = if has_certificate {
        let key = PrivateKeyDer::from_pem_file(dir.join("client-key.pem")).unwrap();
        config.with_client_auth_cert(certificates("client-cert.pem"), key).unwrap()
    } else {
        config.with_no_client_auth()
    };
    let connection = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    Client { stream: StreamOwned::new(connection, client.stream), structured: false }
}

fn greeted(served: &Served) -> Client {
    let mut client = served.connect();
    client.greet(3);
    client
}

#[test]
fn a_client_that_has_to_have_tls_is_told_of_nothing_before() {
    let dir = tempfile::tempdir().unwrap();
    if !certificates::make(dir.path()) {
        return;
    }
    let served = served(dir.path(), true, false);
    let mut client = greeted(&served);
    for (number, data) in [(LIST, vec![]), (INFO, ask("x", &[])), (GO, ask("x", &[])), (STRUCTURED_REPLY, vec![])] {
        assert_eq!(client.option(number, &data), [(TLS_REQD, vec![])], "{number}");
    }
    assert_eq!(client.option(STARTTLS, &[0]), [(INVALID, vec![])]);
    client.send_option(EXPORT_NAME, 1, b"x");
    assert!(client.is_closed());

    let mut client = secure(greeted(&served), dir.path(), false);
    assert_eq!(client.option(STARTTLS, &[]), [(INVALID, vec![])], "a second time");
    client.choose("x", true);
    assert_eq!(client.call((WRITE, 1), 5, 6, b"secret"), Reply::Done);
    assert!(client.read(5, 6) == b"secret");
    // one that has asked to begin, and then goes on as before, is closed
    let mut plain = greeted(&served);
    assert_eq!(plain.option(STARTTLS, &[]), [(ACK, vec![])]);
    plain.send_option(LIST, 0, &[]);
    let mut rest = Vec::new();
    let _closed = std::io::Read::read_to_end(&mut plain.stream, &mut rest);
    assert!(!rest.windows(8).any(|bytes| bytes == 0x0003_e889_0455_65a9_u64.to_be_bytes()), "an option was answered");
    assert!(served.end());
}

#[test]
fn what_was_negotiated_before_does_not_hold_behind() {
    let dir = tempfile::tempdir().unwrap();
    if !certificates::make(dir.path()) {
        return;
    }
    let served = served(dir.path(), false, false);
    // it is offered, and not needed
    assert!(served.client("x", true).read(0, 4) == [0; 4]);
    let mut client = greeted(&served);
    assert_eq!(client.option(STRUCTURED_REPLY, &[]), [(ACK, vec![])]);
    let mut client = secure(client, dir.path(), false);
    assert_eq!(client.option(SET_META_CONTEXT, &[&text("x")[..], &[0; 4]].concat()), [(INVALID, vec![])]);
    // replies are simple
    client.choose("x", false);
    assert!(client.read(0, 4) == [0; 4]);
}

#[test]
fn many_requests_at_once_keep_their_bytes() {
    let dir = tempfile::tempdir().unwrap();
    if !certificates::make(dir.path()) {
        return;
    }
    let served = served(dir.path(), true, false);
    let mut client = secure(greeted(&served), dir.path(), false);
    client.choose("x", true);
    // larger than what is encrypted at a time, and of odd lengths
    let piece = |n: u64| (n + 1).to_be_bytes().repeat(50_000 + n as usize);
    let at = |n: u64| n * (1 << 20);
    for n in 0..40 {
        let data = piece(n);
        client.request((WRITE, 0), n, at(n), data.len() as u32, &data);
    }
    let mut cookies: Vec<u64> = (0..40)
        .map(|_| {
            let (cookie, reply) = client.reply(None);
            assert_eq!(reply, Reply::Done);
            cookie
        })
        .collect();
    cookies.sort_unstable();
    assert_eq!(cookies, (0..40).collect::<Vec<_>>());
    for n in 0..40 {
        client.request((READ, 4), n, at(n), piece(n).len() as u32, &[]);
    }
    for _ in 0..40 {
        let (cookie, reply) = client.reply(Some(0));
        let Reply::Data(chunks) = reply else { panic!("{reply:?}") };
        assert!(chunks == [(at(cookie), piece(cookie), false)], "{cookie}");
    }
    client.request((DISC, 0), 0, 0, 0, &[]);
    assert!(served.end());
}

#[test]
fn clients_without_a_certificate_are_refused_where_they_have_to_show_one() {
    let dir = tempfile::tempdir().unwrap();
    if !certificates::make(dir.path()) {
        return;
    }
    let served = served(dir.path(), true, true);
    let mut client = secure(greeted(&served), dir.path(), true);
    client.choose("x", true);
    assert!(client.read(0, 4) == [0; 4]);
    let mut stranger = secure(greeted(&served), dir.path(), false);
    let asked = std::io::Write::write_all(&mut stranger.stream, &[b"IHAVEOPT", &[0; 3][..], &[3, 0, 0, 0, 0]].concat());
    let answered = asked.and_then(|()| std::io::Read::read_exact(&mut stranger.stream, &mut [0; 20]));
    assert!(answered.is_err(), "a client without a certificate was answered");
    // an authority of another
    let other = tempfile::tempdir().unwrap();
    assert!(certificates::make(other.path()));
    for name in ["client-cert.pem", "client-key.pem"] {
        std::fs::copy(other.path().join(name), dir.path().join(name)).unwrap();
    }
    let mut stranger = secure(greeted(&served), dir.path(), true);
    let asked = std::io::Write::write_all(&mut stranger.stream, &[b"IHAVEOPT", &[0; 3][..], &[3, 0, 0, 0, 0]].concat());
    let answered = asked.and_then(|()| std::io::Read::read_exact(&mut stranger.stream, &mut [0; 20]));
    assert!(answered.is_err(), "a client with another's certificate was answered");
    assert!(served.end());
}

#[test]
fn files_that_are_missing_or_malformed_are_named() {
    let dir = tempfile::tempdir().unwrap();
    if !certificates::make(dir.path()) {
        return;
    }
    let why = |verify_peer| Tls::load(dir.path(), true, verify_peer).map(drop).unwrap_err().to_string();
    let [cert, key, authorities] =
        ["server-cert.pem", "server-key.pem", "ca-cert.pem"].map(|name| dir.path().join(name));
    std::fs::write(dir.path().join("ca-crl.pem"), "").unwrap();
    assert!(why(true).contains("ca-crl.pem: lists of revoked certificates are not heeded"));
    std::fs::remove_file(dir.path().join("ca-crl.pem")).unwrap();
    std::fs::remove_file(&authorities).unwrap();
    assert!(why(true).contains("ca-cert.pem: "), "{}", why(true));
    assert!(Tls::load(dir.path(), true, false).is_ok());
    // the key of another
    std::fs::copy(dir.path().join("client-key.pem"), &key).unwrap();
    assert!(why(false).contains("the certificates cannot be used"), "{}", why(false));
    std::fs::write(&key, "nothing").unwrap();
    assert!(why(false).contains("server-key.pem: "), "{}", why(false));
    std::fs::write(&cert, "nothing").unwrap();
    assert!(why(false).contains("server-cert.pem: there is no certificate in it"), "{}", why(false));
}
