//! Keeps redirects of a hub out of the local network: a hostile hub could otherwise send requests to
//! servers that trust the user's machine, such as a router or the metadata service of a cloud.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

/// The network of an address, from the widest to the narrowest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Network {
    Public,
    /// A private network, or this machine.
    Private,
    /// The machines of one cable, among them metadata services.
    LinkLocal,
}

/// Returns the addresses of `host:port`, to which a hub at `endpoint` (also `host:port`) redirects.
///
/// # Errors
/// errors of the name server; [`io::ErrorKind::PermissionDenied`] if an address is in a narrower
/// network than the endpoint
pub(super) fn redirect_addresses(target: &str, endpoint: &str) -> io::Result<Vec<SocketAddr>> {
    let addresses: Vec<SocketAddr> = target.to_socket_addrs()?.collect();
    let narrowest = |addresses: &[SocketAddr]| addresses.iter().map(|a| network(a.ip())).max();
    let reached = narrowest(&addresses);
    if reached > Some(Network::Public) {
        let own: Vec<SocketAddr> = endpoint.to_socket_addrs()?.collect();
        if reached > narrowest(&own) {
            let reason = format!("a redirect to {target}, which is in a local network");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
        }
    }
    Ok(addresses)
}

fn network(address: IpAddr) -> Network {
    match address.to_canonical() {
        IpAddr::V4(v4) => network_v4(v4),
        IpAddr::V6(v6) => network_v6(v6),
    }
}

fn network_v4(address: Ipv4Addr) -> Network {
    let [first, second, ..] = address.octets();
    // 100.64.0.0/10 is shared by the customers of a provider.
    let is_shared = first == 100 && second & 0xc0 == 64;
    if address.is_link_local() {
        Network::LinkLocal
    } else if address.is_private() || address.is_loopback() || first == 0 || is_shared {
        Network::Private
    } else {
        Network::Public
    }
}

fn network_v6(address: Ipv6Addr) -> Network {
    // 64:ff9b::/96 has IPv4 addresses in its last four bytes.
    if let [0x64, 0xff9b, 0, 0, 0, 0, high, low] = address.segments() {
        return network_v4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)));
    }
    if address.is_unicast_link_local() {
        Network::LinkLocal
    } else if address.is_unique_local() || address.is_loopback() || address.is_unspecified() {
        Network::Private
    } else {
        Network::Public
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_lead_to_no_narrower_network() {
        let (public, private, link_local) = ("8.8.8.8:443", "10.1.2.3:80", "169.254.1.1:80");
        for (target, endpoint, is_followed) in [
            ("8.8.4.4:443", public, true),
            ("[2001:4860:4860::8888]:443", public, true),
            ("127.0.0.1:80", public, false),
            ("localhost:80", public, false),
            ("0.0.0.0:80", public, false),
            ("192.168.1.1:80", public, false),
            ("172.16.0.1:80", public, false),
            ("100.64.0.1:80", public, false),
            ("169.254.169.254:80", public, false),
            ("[::1]:80", public, false),
            ("[::ffff:10.0.0.1]:80", public, false),
            ("[64:ff9b::a9fe:a9fe]:80", public, false),
            ("[fe80::1]:80", public, false),
            ("[fd00::1]:80", public, false),
            // The mirror of a laboratory.
            ("192.168.1.1:80", private, true),
            ("127.0.0.1:80", private, true),
            ("169.254.169.254:80", private, false),
            ("169.254.169.254:80", link_local, true),
        ] {
            let result = redirect_addresses(target, endpoint);
            assert_eq!(result.is_ok(), is_followed, "{endpoint} to {target}: {result:?}");
        }
    }
}
