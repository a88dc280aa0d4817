//! Keeps redirects of a hub out of the local network: a hostile hub could otherwise send requests to
//! servers that trust the user's machine, such as a router or the metadata service of a cloud.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

/// Metadata services of clouds whose addresses look public or private.
const METADATA: [IpAddr; 5] = [
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42)),
];

/// The networks of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Network {
    /// The internet: one machine that every other one can reach.
    Public,
    /// The network of a home, an institution or a provider.
    Private,
    /// This machine.
    Loopback,
    /// Any other: the machines of one cable, metadata services, groups of machines, reserved ones.
    Special,
}

/// Returns the addresses of `host:port`, to which a hub at `endpoint` (also `host:port`) redirects.
///
/// # Errors
/// errors of the name server; [`io::ErrorKind::PermissionDenied`] if an address is not public,
/// unless the endpoint is in the same network, or on this machine for one in a private network
pub(super) fn redirect_addresses(target: &str, endpoint: &str) -> io::Result<Vec<SocketAddr>> {
    let addresses: Vec<SocketAddr> = target.to_socket_addrs()?.collect();
    let mut local = addresses.iter().map(|address| address.ip().to_canonical());
    if local.any(|address| network(address) != Network::Public) {
        let own = endpoint.to_socket_addrs()?.map(|address| address.ip().to_canonical());
        let own: Vec<IpAddr> = own.collect();
        if !addresses.iter().all(|address| may_reach(address.ip().to_canonical(), &own)) {
            let reason = format!("a redirect to {target}, which is in a local network");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
        }
    }
    Ok(addresses)
}

/// Whether a hub with these `own` addresses may redirect to an address.
fn may_reach(address: IpAddr, own: &[IpAddr]) -> bool {
    let is_in = |networks: &[Network]| own.iter().any(|own| networks.contains(&network(*own)));
    match network(address) {
        Network::Public => true,
        Network::Private => is_in(&[Network::Private, Network::Loopback]),
        Network::Loopback => is_in(&[Network::Loopback]),
        Network::Special => own.contains(&address),
    }
}

fn network(address: IpAddr) -> Network {
    match address {
        _ if METADATA.contains(&address) => Network::Special,
        _ if address.is_loopback() => Network::Loopback,
        IpAddr::V4(v4) => match v4.octets() {
            _ if v4.is_private() => Network::Private,
            // The customers of a provider share 100.64.0.0/10.
            [100, 64..128, ..] => Network::Private,
            [0 | 224.., ..] | [169, 254, ..] | [192, 0, 0 | 2, _] => Network::Special,
            [192, 88, 99, _] | [198, 18 | 19, ..] => Network::Special,
            [198, 51, 100, _] | [203, 0, 113, _] => Network::Special,
            _ => Network::Public,
        },
        IpAddr::V6(v6) => match v6.segments() {
            // 64:ff9b::/96 has IPv4 addresses in its last four bytes.
            [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
                network(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)).into())
            }
            [0xfc00..0xfe00, ..] => Network::Private,
            // 2000::/3 is public, but for protocols, documents, and IPv4 addresses in 2002::/16.
            [0x2001, ..0x200, ..] | [0x2001, 0xdb8, ..] | [0x2002, ..] => Network::Special,
            [0x3fff, ..0x1000, ..] => Network::Special,
            [0x2000..0x4000, ..] => Network::Public,
            _ => Network::Special,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_lead_to_no_narrower_network() {
        // Networks, and the endpoints that may redirect there.
        let networks = [
            ("8.8.4.4 [2001:4860:4860::8888] [64:ff9b::808:808]", &[0, 1, 2, 3][..]),
            ("10.1.2.3 192.168.1.1 172.16.0.1 100.64.0.1 [fd00::1] [::ffff:10.0.0.1]", &[1, 2]),
            ("[64:ff9b::a00:1]", &[1, 2]),
            ("127.0.0.1 localhost [::1] 127.8.8.8", &[2]),
            ("169.254.0.1", &[3]),
            ("169.254.169.254 [fe80::1] [64:ff9b::a9fe:a9fe] 100.100.100.200 168.63.129.16", &[]),
            ("[fd00:ec2::254] [fd20:ce::254] 192.0.0.192 0.0.0.0 [::] 224.0.0.1 [ff02::1]", &[]),
            ("[2002:7f00:1::] [2002:a00:1::1] [::127.0.0.1] [fec0::1] [64:ff9b:1::a00:1]", &[]),
            ("198.18.0.1 198.19.255.1 255.255.255.255 240.0.0.1 192.88.99.1 [2001::1]", &[]),
            ("192.0.2.1 198.51.100.1 203.0.113.1 [2001:db8::1] [3fff::1] [5f00::1]", &[]),
        ];
        let endpoints = ["8.8.8.8:1", "10.0.0.1:1", "127.0.0.1:1", "169.254.0.1:1"];
        for (targets, allowed) in networks {
            for target in targets.split(' ') {
                for (number, endpoint) in endpoints.iter().enumerate() {
                    let result = redirect_addresses(&format!("{target}:1"), endpoint);
                    assert_eq!(result.is_ok(), allowed.contains(&number), "{endpoint} {target}");
                }
            }
        }
    }
}
