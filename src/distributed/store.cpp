#include "distributed/store.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <future>
#include <thread>
#include <utility>

#include "distributed/listener.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/first_line.h"

namespace vlmtrain::distributed {

namespace {

std::vector<uint8_t> bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}

c10d::TCPStoreOptions options_for(const Launch& launch, bool is_server, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(launch.port);
  options.isServer = is_server;
  options.waitWorkers = false;
  options.timeout = timeout;
  return options;
}

/// Not rank 0's own. c10d waits without end for somebody who takes the connection and says nothing, and what ends its
/// patience with one who says something else it writes in twenty lines: so it asks on a thread, which is left to itself
/// before.
c10::intrusive_ptr<c10d::TCPStore> connected(const Launch& launch, std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kLongestAnswer{20'000};  // of a rank 0 that listens
  timeout = std::min(timeout, kLongestAnswer);
  std::packaged_task<c10::intrusive_ptr<c10d::TCPStore>()> connect(
      [host = launch.host, options = options_for(launch, /*is_server=*/false, 10 * timeout), timeout] {
        auto store = c10::make_intrusive<c10d::TCPStore>(host, options);
        store->setTimeout(timeout);
        return store;
      });
  auto store = connect.get_future();
  std::thread(std::move(connect)).detach();
  // By this clock, and not wait_for(), whose symbol older hosts lack (cmake/portable).
  if (store.wait_until(std::chrono::system_clock::now() + timeout) == std::future_status::ready) return store.get();
  throw usage_error(
      "rank {} found somebody at {}:{} who is no rank 0 of vlmtrain: it does not answer as one; if that is another "
      "program, choose another port with MASTER_PORT",
      launch.rank, launch.host, launch.port);
}

c10::intrusive_ptr<c10d::TCPStore> open(const Launch& launch, bool is_server, std::chrono::milliseconds timeout) {
  if (!is_server && !somebody_listens(launch, timeout)) {
    throw usage_error(
        "rank {} found nobody at {}:{} within {} s, where rank 0 should be; was it started? "
        "distributed.rendezvous_seconds sets how long it is waited for",
        launch.rank, launch.host, launch.port, std::chrono::duration<double>(timeout).count());
  }
  try {
    if (!is_server) return connected(launch, timeout);
    return c10::make_intrusive<c10d::TCPStore>(launch.host, options_for(launch, is_server, timeout));
  } catch (const c10::Error& error) {
    const std::string why = first_line(error.what());
    if (is_server) {
      throw usage_error("rank 0 cannot wait for the others at {}:{}: {}; choose another port with MASTER_PORT",
                        launch.host, launch.port, why);
    }
    throw usage_error("rank {} cannot reach rank 0 at {}:{}: {}", launch.rank, launch.host, launch.port, why);
  }
}

}  // namespace

struct SharedTexts::Store {
  explicit Store(c10::intrusive_ptr<c10d::TCPStore> store) : own(std::move(store)) {}

  c10::intrusive_ptr<c10d::TCPStore> own;
};

SharedTexts::SharedTexts(const Launch& launch, bool is_server, std::chrono::milliseconds timeout)
    : store_(std::make_unique<Store>(open(launch, is_server, timeout))) {}

SharedTexts::~SharedTexts() = default;

void SharedTexts::set(const std::string& name, const std::string& text) {
  store_->own->set(name, bytes_of(text));
}

void SharedTexts::set_first(const std::string& name, const std::string& text) {
  store_->own->compareSet(name, {}, bytes_of(text));
}

bool SharedTexts::has(const std::vector<std::string>& names) {
  return store_->own->check(names);
}

std::vector<std::string> SharedTexts::get(const std::vector<std::string>& names) {
  std::vector<std::string> texts;
  texts.reserve(names.size());
  for (const auto& bytes : store_->own->multiGet(names)) texts.emplace_back(bytes.begin(), bytes.end());
  return texts;
}

c10d::Store& SharedTexts::store() {
  return *store_->own;
}

}  // namespace vlmtrain::distributed
