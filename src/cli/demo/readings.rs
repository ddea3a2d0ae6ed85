//! What the sensors measure: a day's curve with some noise, the same for the same sensor and number.

/// Readings of one simulated day: a day passes while we watch.
const DAY: f64 = 600.0;

/// A reading as a message's payload.
pub fn payload(sensor: &str, qos: u8, number: u64) -> String {
    let (value, unit) = if qos == 2 { (flow(number), "l/s") } else { (temperature(sensor, number), "C") };
    format!("{{\"sensor\":\"{sensor}\",\"number\":{number},\"value\":{value:.2},\"unit\":\"{unit}\"}}")
}

/// The topic of a sensor's readings.
pub fn topic(sensor: &str, qos: u8) -> String {
    format!("sensors/{sensor}/{}", if qos == 2 { "flow" } else { "temperature" })
}

fn temperature(sensor: &str, number: u64) -> f64 {
    let place = f64::from(noise(sensor.bytes().fold(7, |seed, byte| seed * 31 + u64::from(byte)))) / 65_536.0;
    14.0 + 4.0 * place + 6.0 * (number as f64 / DAY * std::f64::consts::TAU).sin() + jitter(number)
}

fn flow(number: u64) -> f64 {
    100.0 + 25.0 * (number as f64 / DAY * 2.0 * std::f64::consts::TAU).sin() + 3.0 * jitter(number)
}

fn jitter(number: u64) -> f64 {
    f64::from(noise(number)) / 65_536.0 - 0.5
}

/// 16 bits that look random (the finaliser of SplitMix64).
fn noise(seed: u64) -> u16 {
    let mut z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (z >> 48) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_vary_and_stay_plausible() {
        let values: Vec<f64> = (0..1_000).map(|number| temperature("thermo-01", number)).collect();
        assert!(values.iter().all(|value| (5.0..30.0).contains(value)));
        assert!(values.windows(2).filter(|pair| pair[0] != pair[1]).count() > 990);
        assert_ne!(temperature("thermo-01", 3), temperature("thermo-02", 3));
    }

    #[test]
    fn a_payload_is_json() {
        let value: serde_json::Value = serde_json::from_str(&payload("pump-03", 2, 17)).unwrap();
        assert_eq!((value["number"].as_u64(), value["unit"].as_str()), (Some(17), Some("l/s")));
    }
}
