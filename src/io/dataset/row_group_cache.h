#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "vlmtrain/io/dataset_file.h"
#include "vlmtrain/io/row_file.h"

namespace vlmtrain::io {

/// The row groups that were used last, of all data sets of a process: samples of a group that are drawn near to each
/// other are read once. They take up to a number of bytes, but the one that was used last of each data set is kept in
/// any case: else several that are drawn from by turns would be read again for each sample. Room is made before a group
/// is read, and groups that take more than half of the bytes are read one at a time. Of several threads that ask for
/// the same group one reads it and the others wait. Thread-safe.
class RowGroupCache {
 public:
  struct Key {
    uint64_t data_set = 0;
    uint64_t file = 0;
    size_t group = 0;
    bool with_bytes = true;
    bool operator==(const Key&) const = default;
  };
  using Group = std::shared_ptr<const RowGroup>;

  explicit RowGroupCache(int64_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}

  /// A number that no other data set or file has here.
  uint64_t make_id() { return ++next_id_; }

  /// `expected_bytes`: what the group will take, as far as that is known. What `load` throws, all that wait for it get;
  /// the next one that asks reads again.
  Group get(const Key& key, int64_t expected_bytes, const std::function<std::unique_ptr<const RowGroup>()>& load);

  /// Enters what the row groups of a file take, for memory().
  void add_file(uint64_t data_set, uint64_t file, const std::filesystem::path& path, const std::vector<int64_t>& rows,
                const std::vector<int64_t>& bytes);
  /// Forgets a file and its groups, which nobody asks for any more.
  void remove_file(uint64_t file);

  int64_t bytes() const;
  RowGroupMemory memory() const;

 private:
  struct Entry {
    Key key;
    std::shared_future<Group> group;
    int64_t bytes = 0;  // expected until it is read
    bool is_loaded = false;
  };
  struct File {
    uint64_t data_set = 0;
    int64_t all_bytes = 0;  // of its groups
    LargeRowGroup largest;
  };

  Group load_group(const Key& key, int64_t expected_bytes,
                   const std::function<std::unique_ptr<const RowGroup>()>& load);
  void update_size(const Key& key, int64_t bytes);
  void evict(const Entry& current);
  void erase_entry(const Key& key);

  const int64_t capacity_bytes_;
  std::atomic<uint64_t> next_id_{0};
  mutable std::mutex mutex_;  // guards what follows
  std::list<Entry> entries_;  // the one that was used last comes first
  std::map<uint64_t, File> files_;
  int64_t bytes_ = 0;
  std::mutex large_read_mutex_;  // held while a large group is read
};

}  // namespace vlmtrain::io
