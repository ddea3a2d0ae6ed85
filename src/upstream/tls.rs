//! TLS towards an upstream: rustls with ring. All files are read anew at each connection, so that a renewed certificate needs no
//! restart.

use crate::settings::UpstreamTls;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::path::Path;
use std::sync::Arc;

/// Where distributions keep the authorities that they trust.
const SYSTEM_AUTHORITIES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The configuration of one connection, and the name to check.
///
/// # Errors
/// In words: the file and what is wrong with it.
pub(super) fn prepare(tls: &UpstreamTls, host: &str) -> Result<(Arc<ClientConfig>, ServerName<'static>), String> {
    let name = tls.server_name.as_deref().unwrap_or(host);
    let name = ServerName::try_from(name.to_owned()).map_err(|_| format!("tls: {name} is not a host name"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("tls: {error}"))?
        .with_root_certificates(authorities(tls)?);
    let config = match (&tls.cert_file, &tls.key_file) {
        (Some(cert), Some(key)) => {
            let chain = certificates(cert)?;
            let key = PrivateKeyDer::from_pem_file(key).map_err(|error| said("key_file", key, &error))?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| format!("tls: cert_file with key_file: {error}"))?
        }
        (None, None) => builder.with_no_client_auth(),
        _ => return Err("tls: cert_file and key_file belong together, one of them is missing".into()),
    };
    Ok((Arc::new(config), name))
}

fn authorities(tls: &UpstreamTls) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = &tls.ca_file {
        for certificate in certificates(path)? {
            roots.add(certificate).map_err(|error| said("ca_file", path, &error))?;
        }
        return Ok(roots);
    }
    let path = SYSTEM_AUTHORITIES.iter().map(Path::new).find(|path| path.exists());
    let path = path.ok_or("tls: no ca_file is set and the system has no list of authorities: set ca_file")?;
    roots.add_parsable_certificates(certificates(path)?);
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).map_err(|error| said("certificate", path, &error))?.collect();
    let found = found.map_err(|error| said("certificate", path, &error))?;
    if found.is_empty() { Err(format!("tls: {}: holds no certificate", path.display())) } else { Ok(found) }
}

fn said(what: &str, path: &Path, error: &dyn std::fmt::Display) -> String {
    format!("tls: {what} {}: {error}", path.display())
}
