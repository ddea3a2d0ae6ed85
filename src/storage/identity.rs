//! Who this gateway is: its name, kept from the first start on, the kernel's boot id, and random numbers for what is made anew.

use super::data_dir::{read_small, write_sector};
use super::error::failed;
use crate::limits::GATEWAY_ID_MAX;
use crate::log::store::StoreError;
use crate::settings::valid_gateway_id;
use crate::types::BootId;
use std::path::Path;

/// The gateway's id: the configured one, else the one that was kept, else the host's name, which is then kept. A sentence is added
/// to `notes` where the id is not what it was before.
pub(super) fn gateway_id(
    data_dir: &Path,
    configured: Option<&str>,
    notes: &mut Vec<String>,
) -> Result<String, StoreError> {
    let path = data_dir.join("gateway-id");
    let kept = match read_small(&path)? {
        None => None,
        Some(bytes) => {
            let text = String::from_utf8_lossy(&bytes).trim().to_owned();
            match valid_gateway_id(&text) {
                true => Some(text),
                false => {
                    notes.push(format!(
                        "{} does not hold a gateway id and is written anew: if this gateway had another name, set gateway.id to it",
                        path.display()
                    ));
                    None
                }
            }
        }
    };
    let id = match (configured, &kept) {
        (Some(configured), _) => configured.to_owned(),
        (None, Some(kept)) => kept.clone(),
        (None, None) => id_from_host(&host_name()),
    };
    if kept.as_ref() == Some(&id) {
        return Ok(id);
    }
    if let Some(kept) = &kept {
        notes.push(format!(
            "gateway.id is {id:?}, before it was {kept:?}: upstreams see a new gateway, sessions under the old name are not resumed"
        ));
    }
    match write_sector(&path, &id) {
        Ok(()) => Ok(id),
        // With a name from the configuration, the next start finds it there again.
        Err(error) if configured.is_some() => {
            notes.push(format!("the gateway id could not be kept: {error}"));
            Ok(id)
        }
        Err(error) => Err(error),
    }
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// A gateway id out of a host name: what is not allowed becomes `-`.
fn id_from_host(host: &str) -> String {
    let id: String = host
        .chars()
        .take(GATEWAY_ID_MAX)
        .map(|c| if c.is_ascii_alphanumeric() || ".-_".contains(c) { c } else { '-' })
        .collect();
    if valid_gateway_id(&id) { id } else { "gateway".to_owned() }
}

/// The kernel's boot id; where it cannot be read, a random one, so that nothing is taken for "the same boot".
pub fn boot_id() -> Result<BootId, StoreError> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    match std::fs::read_to_string(path).ok().and_then(|text| parse_uuid(text.trim())) {
        Some(bytes) => Ok(BootId(bytes)),
        None => random().map(BootId),
    }
}

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u32> = text.chars().filter(|c| *c != '-').map(|c| c.to_digit(16)).collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits
        .chunks_exact(2)
        .map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit))
        .filter_map(|byte| u8::try_from(byte).ok())
        .collect();
    (digits.len() == 32).then_some(())?;
    bytes.try_into().ok()
}

/// Random bytes from the kernel, which waits until it has enough entropy: two gateways from one image must not draw the same.
pub fn random<const N: usize>() -> Result<[u8; N], StoreError> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        let path = Path::new("getrandom");
        match rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(failed("read", path)(error)),
        }
    }
    Ok(bytes)
}

/// A random number from the kernel, for seeds.
pub fn random_u64() -> Result<u64, StoreError> {
    random().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_name_is_kept_even_if_the_host_is_renamed() {
        let dir = tempfile::tempdir().unwrap();
        let mut notes = Vec::new();
        let first = gateway_id(dir.path(), None, &mut notes).unwrap();
        assert!(valid_gateway_id(&first));
        write_sector(&dir.path().join("gateway-id"), "the-former-name").unwrap();
        assert_eq!(gateway_id(dir.path(), None, &mut notes).unwrap(), "the-former-name");
        assert!(notes.is_empty());
    }

    #[test]
    fn a_configured_id_wins_and_the_change_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let mut notes = Vec::new();
        assert_eq!(gateway_id(dir.path(), Some("gw-1"), &mut notes).unwrap(), "gw-1");
        assert!(notes.is_empty());
        assert_eq!(gateway_id(dir.path(), Some("gw-2"), &mut notes).unwrap(), "gw-2");
        assert!(notes[0].contains("before it was \"gw-1\""), "{notes:?}");
        assert_eq!(gateway_id(dir.path(), None, &mut notes).unwrap(), "gw-2");
    }

    #[test]
    fn a_torn_id_file_is_told_and_written_anew() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("gateway-id"), [0; 40]).unwrap();
        let mut notes = Vec::new();
        assert!(valid_gateway_id(&gateway_id(dir.path(), None, &mut notes).unwrap()));
        assert_eq!(notes.len(), 1);
    }

    #[test]
    fn host_names_become_ids_that_fit_into_topics() {
        assert_eq!(id_from_host("gw+1/plant#7"), "gw-1-plant-7");
        assert_eq!(id_from_host(""), "gateway");
        assert!(valid_gateway_id(&id_from_host(&"ü".repeat(200))));
    }

    #[test]
    fn the_boot_id_is_the_same_twice_and_random_bytes_are_not() {
        assert_eq!(boot_id().unwrap(), boot_id().unwrap());
        assert_ne!(random::<16>().unwrap(), random::<16>().unwrap());
        assert_eq!(parse_uuid("00112233-4455-6677-8899-aabbccddeeff").unwrap()[15], 0xff);
        assert_eq!(parse_uuid("00112233-4455-6677-8899-aabbccddee"), None);
    }
}
