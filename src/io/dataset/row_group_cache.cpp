#include "io/dataset/row_group_cache.h"

#include <algorithm>
#include <exception>
#include <set>
#include <utility>

namespace vlmtrain::io {

RowGroupCache::SharedRowGroup RowGroupCache::get(const Key& key, int64_t expected_bytes,
                                                 const std::function<std::unique_ptr<const RowGroup>()>& load) {
  std::promise<SharedRowGroup> group_promise;
  {
    std::unique_lock lock(mutex_);
    const auto it = std::ranges::find(entries_, key, &Entry::key);
    if (it != entries_.end()) {
      entries_.splice(entries_.begin(), entries_, it);
      const auto group = it->group;
      lock.unlock();
      return group.get();
    }
    entries_.push_front({.key = key, .group = group_promise.get_future().share()});
  }
  try {
    SharedRowGroup group = load_group(key, expected_bytes, load);
    group_promise.set_value(group);
    return group;
  } catch (...) {
    erase_entry(key);
    group_promise.set_exception(std::current_exception());
    throw;
  }
}

RowGroupCache::SharedRowGroup RowGroupCache::load_group(const Key& key, int64_t expected_bytes,
                                                        const std::function<std::unique_ptr<const RowGroup>()>& load) {
  std::unique_lock large_read_lock(large_read_mutex_, std::defer_lock);
  if (expected_bytes > capacity_bytes_ / 2) large_read_lock.lock();
  update_group_size(key, expected_bytes);
  SharedRowGroup group = load();
  update_group_size(key, std::max<int64_t>(group->bytes(), 1));  // may differ from the footer's size
  const std::lock_guard lock(mutex_);
  if (const auto entry = std::ranges::find(entries_, key, &Entry::key); entry != entries_.end())
    entry->is_loaded = true;
  return group;
}

int64_t RowGroupCache::bytes() const {
  const std::lock_guard lock(mutex_);
  return cached_bytes_;
}

void RowGroupCache::register_file(uint64_t data_set_id, uint64_t file_id, const std::filesystem::path& path,
                                  const std::vector<int64_t>& rows, const std::vector<int64_t>& bytes) {
  RegisteredFile new_file{.data_set_id = data_set_id, .largest_row_group = {.file = path}};
  for (size_t group = 0; group < bytes.size(); ++group) {
    new_file.total_bytes += bytes[group];
    if (bytes[group] <= new_file.largest_row_group.bytes) continue;
    new_file.largest_row_group.group = group;
    new_file.largest_row_group.rows = rows[group];
    new_file.largest_row_group.bytes = bytes[group];
  }
  const std::lock_guard lock(mutex_);
  files_.insert_or_assign(file_id, std::move(new_file));
}

void RowGroupCache::unregister_file(uint64_t file_id) {
  const std::lock_guard lock(mutex_);
  files_.erase(file_id);
  std::erase_if(entries_, [&](const Entry& entry) {
    if (entry.key.file_id == file_id) cached_bytes_ -= entry.bytes;
    return entry.key.file_id == file_id;
  });
}

RowGroupMemoryStats RowGroupCache::get_memory_stats() const {
  const std::lock_guard lock(mutex_);
  RowGroupMemoryStats memory{.largest_row_group = {}, .cached_bytes = cached_bytes_};
  int64_t total_bytes = 0;
  std::map<uint64_t, int64_t> largest_bytes_by_data_set;  // each data set always keeps one group
  for (const auto& [file_id, file] : files_) {
    total_bytes += file.total_bytes;
    largest_bytes_by_data_set[file.data_set_id] =
        std::max(largest_bytes_by_data_set[file.data_set_id], file.largest_row_group.bytes);
    if (!memory.largest_row_group || file.largest_row_group.bytes > memory.largest_row_group->bytes)
      memory.largest_row_group = file.largest_row_group;
  }
  int64_t min_cached_bytes = 0;
  for (const auto& [data_set_id, bytes] : largest_bytes_by_data_set) min_cached_bytes += bytes;
  memory.max_cached_bytes = std::max(min_cached_bytes, std::min(total_bytes, capacity_bytes_));
  return memory;
}

/// Sets the size of a group that is being loaded or was loaded, and evicts other groups if the
/// capacity is exceeded.
void RowGroupCache::update_group_size(const Key& key, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto it = std::ranges::find(entries_, key, &Entry::key);
  if (it == entries_.end()) return;  // the file was removed in the meantime
  cached_bytes_ += bytes - it->bytes;
  it->bytes = bytes;
  evict_groups(*it);
}

/// Evicts loaded groups, least recently used first, except `current_entry` and the most recently
/// used group of each data set. REQUIRES: mutex_ is held.
void RowGroupCache::evict_groups(const Entry& current_entry) {
  std::set<uint64_t> visited_data_set_ids{current_entry.key.data_set_id};  // whose most recently used group was visited
  std::vector<std::list<Entry>::iterator> evictable_entries;
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (&*entry == &current_entry) continue;
    const bool is_most_recent_group = visited_data_set_ids.insert(entry->key.data_set_id).second;
    if (!is_most_recent_group && entry->is_loaded) evictable_entries.push_back(entry);
  }
  for (; cached_bytes_ > capacity_bytes_ && !evictable_entries.empty(); evictable_entries.pop_back()) {
    cached_bytes_ -= evictable_entries.back()->bytes;
    entries_.erase(evictable_entries.back());
  }
}

void RowGroupCache::erase_entry(const Key& key) {
  const std::lock_guard lock(mutex_);
  const auto entry = std::ranges::find(entries_, key, &Entry::key);
  if (entry == entries_.end()) return;
  cached_bytes_ -= entry->bytes;
  entries_.erase(entry);
}

int64_t RowGroupMemoryStats::compute_max_additional_bytes() const {
  if (!largest_row_group) return 0;
  return std::max<int64_t>(0, max_cached_bytes - cached_bytes) + largest_row_group->bytes;
}

}  // namespace vlmtrain::io
