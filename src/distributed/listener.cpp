#include "distributed/listener.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>
#include <thread>

namespace vlmtrain::distributed {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

bool connects_to(const addrinfo& address, milliseconds timeout) {
  const int asking = socket(address.ai_family, address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, address.ai_protocol);
  if (asking < 0) return false;
  bool is_connected = connect(asking, address.ai_addr, address.ai_addrlen) == 0;
  if (!is_connected && errno == EINPROGRESS) {
    pollfd wanted{.fd = asking, .events = POLLOUT, .revents = 0};
    int error = 0;
    socklen_t size = sizeof(error);
    is_connected = poll(&wanted, 1, static_cast<int>(timeout.count())) == 1 &&
                   getsockopt(asking, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
  }
  close(asking);
  return is_connected;
}

bool answers(const Launch& launch, milliseconds timeout) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(launch.host.c_str(), std::to_string(launch.port).c_str(), &hints, &found) != 0) return false;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, freeaddrinfo);
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    if (connects_to(*address, timeout)) return true;
  }
  return false;
}

}  // namespace

bool somebody_listens(const Launch& launch, milliseconds timeout) {
  constexpr milliseconds kAttempt{2000}, kPause{100};
  const auto deadline = Clock::now() + timeout;
  for (;;) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    if (left <= milliseconds(0)) return false;
    if (answers(launch, std::min(left, kAttempt))) return true;
    std::this_thread::sleep_for(std::min(left, kPause));
  }
}

}  // namespace vlmtrain::distributed
