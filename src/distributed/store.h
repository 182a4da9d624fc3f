#pragma once

namespace c10d {
class Store;
}

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "vlmtrain/distributed/launch.h"

namespace vlmtrain::distributed {

/// Polls until a server accepts connections at rank 0's address. Returns false after `timeout`.
/// Exact, unlike c10d's own store, which waits up to three times as long as its timeout.
bool wait_until_listening(const LaunchInfo& launch, std::chrono::milliseconds timeout);

/// A key-value store that all ranks share and rank 0 hosts. Methods throw c10d's exceptions if rank
/// 0 is gone. Not thread-safe.
class SharedStore {
 public:
  /// Connects to rank 0's store. If `is_server`, hosts the store as long as this object lives.
  /// Throws UserError (kUsage) if the port is in use, or no server listens there within `timeout`.
  SharedStore(const LaunchInfo& launch, bool is_server, std::chrono::milliseconds timeout);
  ~SharedStore();
  SharedStore(const SharedStore&) = delete;
  SharedStore& operator=(const SharedStore&) = delete;

  /// Sets the value of a key.
  void set(const std::string& key, const std::string& value);
  /// Sets the value if the key does not exist.
  void set_if_absent(const std::string& key, const std::string& value);
  /// Returns whether all keys exist.
  bool has_keys(const std::vector<std::string>& keys);
  /// Returns the values of the keys. REQUIRES: has_keys(keys).
  std::vector<std::string> get(const std::vector<std::string>& keys);

  /// Returns c10d's store, for process groups.
  c10d::Store& get_c10d_store();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vlmtrain::distributed
