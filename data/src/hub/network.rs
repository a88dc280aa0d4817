//! Keeps redirects of a hub out of the local network: a hostile hub could otherwise send requests to
//! servers that trust the user's machine, such as a router or the metadata service of a cloud.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};

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
    let (is_link_local, is_private) = match address.to_canonical() {
        IpAddr::V4(v4) => {
            let [first, second, ..] = v4.octets();
            // 100.64.0.0/10 is shared by the customers of a provider.
            let is_special = first == 0 || first == 100 && second & 0xc0 == 64;
            (v4.is_link_local(), v4.is_private() || v4.is_loopback() || is_special)
        }
        IpAddr::V6(v6) => match v6.segments() {
            // 64:ff9b::/96 has IPv4 addresses in its last four bytes.
            [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
                let v4 = Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
                return network(v4.into());
            }
            _ => {
                let is_private = v6.is_unique_local() || v6.is_loopback() || v6.is_unspecified();
                (v6.is_unicast_link_local(), is_private)
            }
        },
    };
    match (is_link_local, is_private) {
        (true, _) => Network::LinkLocal,
        (false, true) => Network::Private,
        (false, false) => Network::Public,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_lead_to_no_narrower_network() {
        let public = ["8.8.4.4:1", "[2001:4860:4860::8888]:1"];
        let private = [
            "127.0.0.1:1 localhost:1 0.0.0.0:1 10.1.2.3:1 192.168.1.1:1 172.16.0.1:1 100.64.0.1:1",
            "[::1]:1 [fd00::1]:1 [::ffff:10.0.0.1]:1 [64:ff9b::a00:1]:1",
        ];
        let link_local = ["169.254.169.254:1 [fe80::1]:1 [64:ff9b::a9fe:a9fe]:1"];
        let networks =
            [("8.8.8.8:1", &public[..]), ("10.0.0.1:1", &private), ("169.254.0.1:1", &link_local)];
        for (network, (endpoint, _)) in networks.iter().enumerate() {
            for (reached, (_, targets)) in networks.iter().enumerate() {
                for target in targets.iter().flat_map(|targets| targets.split(' ')) {
                    let result = redirect_addresses(target, endpoint);
                    assert_eq!(
                        result.is_ok(),
                        reached <= network,
                        "{endpoint}, {target}: {result:?}"
                    );
                }
            }
        }
    }
}
