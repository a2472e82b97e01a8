//! Certificates, made with the program `openssl`.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::disallowed_methods)]

use std::path::Path;
use std::process::Command;

/// Makes an authority, and certificates of a server (`localhost`) and of a client that it signs, in a directory: the names are those of libnbd, QEMU and nbdkit. Returns false if there is no `openssl`.
///
/// # Panics
/// If it fails, and in CI if it is not installed.
pub fn make(dir: &Path) -> bool {
    let openssl = |args: &[&str]| match Command::new("openssl").args(args).current_dir(dir).output() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            assert!(std::env::var_os("CI").is_none(), "openssl is missing; scripts/setup installs it");
            eprintln!("no openssl here: skipped");
            false
        }
        output => {
            let output = output.unwrap();
            assert!(output.status.success(), "{args:?}: {output:?}");
            true
        }
    };
    let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
    let authority = ["-x509", "-days", "30", "-subj", "/CN=authority", "-keyout", "ca-key.pem", "-out", "ca-cert.pem"];
    if !openssl(&[&["req"], &key[..], &authority].concat()) {
        return false;
    }
    for (who, extensions) in [
        ("server", "subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth\n"),
        ("client", "extendedKeyUsage=clientAuth\n"),
    ] {
        let [secret, request, cert, ext] =
            ["key.pem", "request", "cert.pem", "ext"].map(|what| format!("{who}-{what}"));
        let subject = format!("/CN={who}");
        std::fs::write(dir.join(&ext), extensions).unwrap();
        openssl(&[&["req"], &key[..], &["-subj", &subject, "-keyout", &secret, "-out", &request]].concat());
        let signed = ["-CA", "ca-cert.pem", "-CAkey", "ca-key.pem", "-CAcreateserial", "-days", "30"];
        let files = ["-in", &request, "-extfile", &ext, "-out", &cert];
        openssl(&[&["x509", "-req"], &signed[..], &files].concat());
    }
    true
}
