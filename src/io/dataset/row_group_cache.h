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

#include "vlmtrain/io/records.h"
#include "vlmtrain/io/row_file.h"

namespace vlmtrain::io {

/// An LRU cache of the row groups of all data sets of a process: samples of one group that are
/// drawn close together read it only once. Its size is bounded, but the most recently used group of
/// each data set always stays; otherwise a mixture of data sets would read a group for every
/// sample. Groups are evicted before another one is read, and groups larger than half of the
/// capacity are read one at a time, so that several threads do not exceed the bound together. If
/// several threads request the same group, one reads it and the others wait. Thread-safe.
class RowGroupCache {
 public:
  /// Identity of a row group, with or without the bytes of its media.
  struct Key {
    uint64_t data_set_id = 0;         ///< id from make_unique_id()
    uint64_t file_id = 0;             ///< id from make_unique_id()
    size_t group = 0;                 ///< index in the file
    bool include_media_bytes = true;  ///< as in RowFile::read()
    bool operator==(const Key&) const = default;
  };
  using SharedRowGroup = std::shared_ptr<const RowGroup>;

  explicit RowGroupCache(int64_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}

  /// Returns an id that is unique among the data sets and files of this cache.
  uint64_t make_unique_id() { return ++next_id_; }

  /// Returns a group from the cache or from `load`. `expected_bytes` is the expected size of the
  /// group, or 0 if unknown. If `load` throws, all threads that wait for the group get its
  /// exception, and the next request calls `load` again.
  SharedRowGroup get(const Key& key, int64_t expected_bytes,
                     const std::function<std::unique_ptr<const RowGroup>()>& load);

  /// Registers a file for get_memory_stats(). `rows` and `bytes` have one entry for each of its row
  /// groups: the number of rows and the uncompressed size.
  void register_file(uint64_t data_set_id, uint64_t file_id, const std::filesystem::path& path,
                     const std::vector<int64_t>& rows, const std::vector<int64_t>& bytes);
  /// Removes a file and its groups. REQUIRES: groups of the file are not requested any more.
  void unregister_file(uint64_t file_id);

  /// Returns the size of all cached groups.
  int64_t bytes() const;
  /// Returns the memory of the registered files and the cached groups.
  RowGroupMemoryStats get_memory_stats() const;

 private:
  struct Entry {
    Key key;
    std::shared_future<SharedRowGroup> group;
    int64_t bytes = 0;  // the expected size until the group is loaded, then its actual size
    bool is_loaded = false;
  };
  struct RegisteredFile {
    uint64_t data_set_id = 0;
    int64_t total_bytes = 0;  // sum over its groups
    RowGroupInfo largest_row_group;
  };

  SharedRowGroup load_group(const Key& key, int64_t expected_bytes,
                            const std::function<std::unique_ptr<const RowGroup>()>& load);
  void update_group_size(const Key& key, int64_t bytes);
  void evict_groups(const Entry& current_entry);
  void erase_entry(const Key& key);

  const int64_t capacity_bytes_;
  std::atomic<uint64_t> next_id_{0};
  mutable std::mutex mutex_;  // guards entries_, files_ and cached_bytes_
  std::list<Entry> entries_;  // most recently used first
  std::map<uint64_t, RegisteredFile> files_;
  int64_t cached_bytes_ = 0;
  std::mutex large_read_mutex_;  // held while a group of more than half the capacity is read
};

}  // namespace vlmtrain::io
