#include "io/dataset/row_group_cache.h"

#include <algorithm>
#include <exception>
#include <set>
#include <utility>

namespace vlmtrain::io {

RowGroupCache::Group RowGroupCache::get(const Key& key, int64_t expected_bytes,
                                        const std::function<std::unique_ptr<const RowGroup>()>& load) {
  std::promise<Group> promise;
  {
    std::unique_lock lock(mutex_);
    const auto it = std::ranges::find(entries_, key, &Entry::key);
    if (it != entries_.end()) {
      entries_.splice(entries_.begin(), entries_, it);
      const auto group = it->group;
      lock.unlock();
      return group.get();
    }
    entries_.push_front({.key = key, .group = promise.get_future().share()});
  }
  try {
    Group group = load_group(key, expected_bytes, load);
    promise.set_value(group);
    return group;
  } catch (...) {
    erase_entry(key);
    promise.set_exception(std::current_exception());
    throw;
  }
}

RowGroupCache::Group RowGroupCache::load_group(const Key& key, int64_t expected_bytes,
                                               const std::function<std::unique_ptr<const RowGroup>()>& load) {
  std::unique_lock large_read_lock(large_read_mutex_, std::defer_lock);
  if (expected_bytes > capacity_bytes_ / 2) large_read_lock.lock();
  update_size(key, expected_bytes);
  Group group = load();
  update_size(key, std::max<int64_t>(group->bytes(), 1));  // may differ from the footer's size
  const std::lock_guard lock(mutex_);
  if (const auto entry = std::ranges::find(entries_, key, &Entry::key); entry != entries_.end())
    entry->is_loaded = true;
  return group;
}

int64_t RowGroupCache::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

void RowGroupCache::add_file(uint64_t data_set, uint64_t file, const std::filesystem::path& path,
                             const std::vector<int64_t>& rows, const std::vector<int64_t>& bytes) {
  File entry{.data_set = data_set, .largest = {.file = path}};
  for (size_t group = 0; group < bytes.size(); ++group) {
    entry.all_bytes += bytes[group];
    if (bytes[group] <= entry.largest.bytes) continue;
    entry.largest.group = group;
    entry.largest.rows = rows[group];
    entry.largest.bytes = bytes[group];
  }
  const std::lock_guard lock(mutex_);
  files_.insert_or_assign(file, std::move(entry));
}

void RowGroupCache::remove_file(uint64_t file) {
  const std::lock_guard lock(mutex_);
  files_.erase(file);
  std::erase_if(entries_, [&](const Entry& entry) {
    if (entry.key.file == file) bytes_ -= entry.bytes;
    return entry.key.file == file;
  });
}

RowGroupMemory RowGroupCache::memory() const {
  const std::lock_guard lock(mutex_);
  RowGroupMemory memory{.largest = {}, .cached_bytes = bytes_};
  int64_t all_bytes = 0;
  std::map<uint64_t, int64_t> largest;  // by data set, because each always keeps one group
  for (const auto& [file_id, file] : files_) {
    all_bytes += file.all_bytes;
    largest[file.data_set] = std::max(largest[file.data_set], file.largest.bytes);
    if (!memory.largest || file.largest.bytes > memory.largest->bytes) memory.largest = file.largest;
  }
  int64_t min_bytes = 0;
  for (const auto& [data_set, bytes] : largest) min_bytes += bytes;
  memory.max_cached_bytes = std::max(min_bytes, std::min(all_bytes, capacity_bytes_));
  return memory;
}

/// Sets the size of a group that is being loaded or was loaded, and evicts other groups if the
/// capacity is exceeded.
void RowGroupCache::update_size(const Key& key, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto it = std::ranges::find(entries_, key, &Entry::key);
  if (it == entries_.end()) return;  // the file was removed in the meantime
  bytes_ += bytes - it->bytes;
  it->bytes = bytes;
  evict(*it);
}

/// Evicts loaded groups, least recently used first, except `current` and the most recently used
/// group of each data set. REQUIRES: mutex_ is held.
void RowGroupCache::evict(const Entry& current) {
  std::set<uint64_t> data_sets{current.key.data_set};  // whose most recently used group was visited
  std::vector<std::list<Entry>::iterator> evictable_entries;
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (&*entry == &current) continue;
    const bool is_first = data_sets.insert(entry->key.data_set).second;
    if (!is_first && entry->is_loaded) evictable_entries.push_back(entry);
  }
  for (; bytes_ > capacity_bytes_ && !evictable_entries.empty(); evictable_entries.pop_back()) {
    bytes_ -= evictable_entries.back()->bytes;
    entries_.erase(evictable_entries.back());
  }
}

void RowGroupCache::erase_entry(const Key& key) {
  const std::lock_guard lock(mutex_);
  const auto entry = std::ranges::find(entries_, key, &Entry::key);
  if (entry == entries_.end()) return;
  bytes_ -= entry->bytes;
  entries_.erase(entry);
}

int64_t RowGroupMemory::compute_additional_bytes() const {
  if (!largest) return 0;
  return std::max<int64_t>(0, max_cached_bytes - cached_bytes) + largest->bytes;
}

}  // namespace vlmtrain::io
