//! TLS on a connection (`NBD_OPT_STARTTLS`): certificates, the handshake, and data behind it.
//!
//! The protocol is the crate `rustls`'s (TLS 1.2 and 1.3). Certificates are files of a directory with the names that QEMU, nbdkit and libnbd have for them: `server-cert.pem` (with the intermediate ones behind it),
//! `server-key.pem`, and, where clients have to show one, `ca-cert.pem` with those who may sign it.
//!
//! # One connection, many threads
//! One thread reads, and those that carry out requests write. The state of TLS is one, so it is locked, but never while somebody waits for the socket to have something: the reader takes bytes from the socket first, and
//! decrypts them then. Writers take turns ([`Secured::sending`]), from the encryption of a piece until its records are in the socket, as records are numbered.
//! What the reader has to send (an alert, the answer to an update of keys) takes its turn among them.

use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};

use crate::socket::Socket;

/// Files of a directory of certificates.
const CERTIFICATE: &str = "server-cert.pem";
const KEY: &str = "server-key.pem";
const AUTHORITIES: &str = "ca-cert.pem";
const REVOKED: &str = "ca-crl.pem";
/// Bytes that are taken from the socket at a time.
const TAKEN: usize = 64 << 10;
/// Bytes of a reply that are encrypted at a time.
const PIECE: usize = 256 << 10;

/// Why there can be no TLS.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read, or is not what it should be.
    #[error("{}: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The certificates cannot be used.
    #[error("the certificates cannot be used: {0}")]
    Unusable(String),
}

/// The certificates of a server, and whether clients have to use TLS.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ServerConfig>,
    required: bool,
    verifies: bool,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tls { required, verifies, .. } = self;
        f.debug_struct("Tls").field("required", required).field("verifies", verifies).finish_non_exhaustive()
    }
}

impl Tls {
    /// Takes the certificates of a directory. If `required`, clients without TLS are told to use it, and get nothing; with `verify_peer` those that use it show a certificate, which `ca-cert.pem` signs.
    ///
    /// # Errors
    /// When a file is missing or malformed, or the key is not that of the certificate.
    pub fn load(directory: &Path, required: bool, verify_peer: bool) -> Result<Tls, TlsError> {
        let unusable = |e: &dyn fmt::Display| TlsError::Unusable(e.to_string());
        let provider = Arc::new(ring::default_provider());
        let chain = certificates(directory.join(CERTIFICATE))?;
        let path = directory.join(KEY);
        let key = PrivateKeyDer::from_pem_file(&path).map_err(|e| TlsError::File { path, why: said(&e) })?;
        let builder = ServerConfig::builder_with_provider(provider.clone());
        let builder = builder.with_safe_default_protocol_versions().map_err(|e| unusable(&e))?;
        let builder = if verify_peer {
            let path = directory.join(REVOKED);
            if path.exists() {
                return Err(TlsError::File { path, why: "lists of revoked certificates are not heeded".to_owned() });
            }
            let mut authorities = RootCertStore::empty();
            for one in certificates(directory.join(AUTHORITIES))? {
                authorities.add(one).map_err(|e| unusable(&e))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|e| unusable(&e))?)
        } else {
            builder.with_no_client_auth()
        };
        let config = Arc::new(builder.with_single_cert(chain, key).map_err(|e| unusable(&e))?);
        Ok(Tls { config, required, verifies: verify_peer })
    }

    /// Returns whether clients have to use TLS.
    #[must_use]
    pub fn is_required(&self) -> bool {
        self.required
    }

    /// Returns whether nobody is served who has shown no certificate.
    #[must_use]
    pub fn knows_clients(&self) -> bool {
        self.required && self.verifies
    }
}

/// Reads the certificates in a file, of which there is at least one.
fn certificates(path: PathBuf) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(&path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err(TlsError::File { path, why: "there is no certificate in it".to_owned() }),
        Err(e) => Err(TlsError::File { path, why: said(&e) }),
    }
}

/// The words for an error of a file.
fn said(e: &rustls::pki_types::pem::Error) -> String {
    use rustls::pki_types::pem::Error;
    match e {
        Error::Io(e) => e.to_string(),
        Error::NoItemsFound => "there is none in it".to_owned(),
        other => other.to_string(),
    }
}

/// A connection with TLS.
pub(crate) struct Secured {
    socket: Arc<Socket>,
    state: Mutex<ServerConnection>,
    /// Bytes from the socket that are not decrypted, for the one that reads.
    taken: Mutex<Taken>,
    /// Locked by who sends, until its records are in the socket.
    sending: Mutex<()>,
}

/// Bytes of a buffer that are not used yet.
struct Taken {
    buffer: Vec<u8>,
    begin: usize,
    end: usize,
}

impl Taken {
    /// The bytes that are left.
    fn left(&self) -> &[u8] {
        self.buffer.get(self.begin..self.end).unwrap_or_default()
    }
}

impl Secured {
    /// Shakes hands with a client that has begun to.
    ///
    /// # Errors
    /// When it does not keep to the protocol, or shows no certificate that it has to; those of the socket.
    pub(crate) fn accept(tls: &Tls, socket: Arc<Socket>) -> io::Result<Secured> {
        let mut state = ServerConnection::new(tls.config.clone()).map_err(io::Error::other)?;
        state.set_buffer_limit(Some(PIECE));
        while state.is_handshaking() || state.wants_write() {
            // an alert is sent before an error is returned
            state.complete_io(&mut &*socket)?;
        }
        let taken = Taken { buffer: vec![0; TAKEN], begin: 0, end: 0 };
        Ok(Secured { socket, state: Mutex::new(state), taken: Mutex::new(taken), sending: Mutex::default() })
    }

    /// Reads; 0 bytes at the end that the client has announced.
    pub(crate) fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        let mut taken = self.taken.lock();
        loop {
            match self.state.lock().reader().read(buf) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
            if taken.left().is_empty() {
                let read = (&*self.socket).read(&mut taken.buffer)?;
                (taken.begin, taken.end) = (0, read);
            }
            self.decrypt(&mut taken)?;
        }
    }

    /// Decrypts some of what was taken from the socket; nothing there is its end.
    fn decrypt(&self, taken: &mut Taken) -> io::Result<()> {
        let mut state = self.state.lock();
        let mut left = taken.left();
        let used = state.read_tls(&mut left)?;
        taken.begin += used;
        let processed = state.process_new_packets();
        let has_to_send = state.wants_write();
        drop(state);
        if has_to_send {
            let _turn = self.sending.lock();
            let sent = self.send();
            if processed.is_ok() {
                sent?;
            }
        }
        processed.map(drop).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
    }

    /// Writes some of what is in these buffers.
    pub(crate) fn write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let _turn = self.sending.lock();
        let written = self.state.lock().writer().write_vectored(bufs)?;
        self.send()?;
        Ok(written)
    }

    /// Sends the records that are ready. The caller has the turn.
    fn send(&self) -> io::Result<()> {
        loop {
            let mut records = Vec::new();
            {
                let mut state = self.state.lock();
                while state.wants_write() {
                    state.write_tls(&mut records)?;
                }
            }
            if records.is_empty() {
                return Ok(());
            }
            (&*self.socket).write_all(&records)?;
        }
    }

    /// Tells the client that nothing follows. One that takes nothing any more is not waited for: its socket is closed then.
    pub(crate) fn finish(&self) {
        if let Some(_turn) = self.sending.try_lock() {
            self.state.lock().send_close_notify();
            // a client that is gone need not know
            let _sent = self.send();
        }
    }
}
