#include "vlmtrain/data/content_index.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>
#include <string_view>
#include <system_error>
#include <tuple>
#include <unordered_set>

#include "data/on_workers.h"
#include "vlmtrain/base/content_hash.h"

namespace vlmtrain::data {

namespace {

constexpr size_t kHeadBytes = size_t{64} << 10;

/// Of the first `most` bytes; nothing where they cannot be read.
std::optional<uint64_t> hash_of_file(const std::string& path, size_t most) {
  std::ifstream file(path, std::ios::binary);
  std::string piece(kHeadBytes, '\0');
  ContentHash hash;
  for (size_t done = 0; done < most && file; done += piece.size()) {
    file.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    hash.add(std::string_view(piece).substr(0, static_cast<size_t>(file.gcount())));
  }
  return file.bad() || (!file && !file.eof()) ? std::nullopt : std::optional{hash.value()};
}

/// The same of bytes in memory.
uint64_t hash_of_bytes(std::string_view bytes, size_t most) {
  ContentHash hash;
  for (size_t done = 0; done < most; done += kHeadBytes) {
    hash.add(bytes.substr(std::min(done, bytes.size()), kHeadBytes));
    if (done + kHeadBytes > bytes.size()) break;
  }
  return hash.value();
}

constexpr size_t kWhole = std::numeric_limits<size_t>::max() / 2;

/// The media of a record, each frame of a list by itself.
std::vector<const io::Medium*> media_in(const io::Record& record) {
  std::vector<const io::Medium*> media;
  for (const auto* list : {&record.images, &record.videos}) {
    for (const io::Medium& medium : *list) {
      if (medium.frames.empty()) media.push_back(&medium);
      for (const io::Medium& frame : medium.frames) media.push_back(&frame);
    }
  }
  return media;
}

/// Of all but what its pictures and videos show.
uint64_t text_of(const io::Record& record) {
  ContentHash hash;
  for (const auto& turn : record.turns) hash.add(static_cast<uint64_t>(turn.role)).add(turn.text);
  for (const auto* list : {&record.images, &record.videos}) {
    hash.add(list->size());
    for (const io::Medium& medium : *list) hash.add(medium.frames.size()).add(medium.modality);
  }
  for (const io::MaskSource& mask : record.masks) {
    hash.add(mask.file.path).add(mask.file.bytes ? std::string_view(*mask.file.bytes) : std::string_view());
    hash.add(mask.value ? static_cast<uint64_t>(*mask.value) + 1 : 0).add(static_cast<uint64_t>(mask.image));
    for (const int64_t count : mask.rle ? mask.rle->counts : std::vector<int64_t>{}) {
      hash.add(static_cast<uint64_t>(count));
    }
  }
  return hash.value();
}

}  // namespace

size_t ContentIndex::add(const io::Records& records, int64_t workers,
                         const std::function<void(int64_t done)>& on_progress) {
  const size_t set = sets_.size();
  sets_.push_back(&records);
  prints_.emplace_back(static_cast<size_t>(records.size()));
  on_workers(
      records.size(), workers,
      [&](int64_t index) { prints_[set][static_cast<size_t>(index)] = print_of(records.at(index), set, index); },
      on_progress);
  return set;
}

ContentIndex::Print ContentIndex::print_of(const io::Record& record, size_t set, int64_t index) {
  Print print;
  if (!record.problem.empty()) return print;
  print.is_usable = true;
  print.text = text_of(record);
  for (const std::string& subject : record.subjects) print.subjects.push_back(ContentHash().add(subject).value());
  for (const io::MaskSource& mask : record.masks) {
    if (mask.rle) continue;
    ContentHash key;
    key.add(mask.file.path).add(mask.file.bytes ? std::string_view(*mask.file.bytes) : std::string_view());
    print.masks.push_back(key.add(mask.value ? static_cast<uint64_t>(*mask.value) + 1 : 0).value());
  }
  const auto media = media_in(record);
  print.media.reserve(media.size());
  for (size_t number = 0; number < media.size(); ++number) {
    print.media.push_back(enter(*media[number], {.set = set, .record = index, .number = static_cast<int64_t>(number)}));
  }
  return print;
}

uint64_t ContentIndex::enter(const io::Medium& medium, KnownMedium known) {
  uint64_t key = 0;
  if (medium.bytes) {
    known.bytes = std::ssize(*medium.bytes);
    known.head = hash_of_bytes(*medium.bytes, kHeadBytes);
    known.content = hash_of_bytes(*medium.bytes, kWhole);
    key = ContentHash().add(uint64_t{1}).add(*known.content).add(static_cast<uint64_t>(known.bytes)).value();
  } else {
    key = ContentHash().add(uint64_t{0}).add(medium.path).value();
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = media_.find(key); found != media_.end()) {
        // The first in the data set stands for it, whichever thread met it first.
        KnownMedium& first = found->second;
        if (std::tie(known.set, known.record) < std::tie(first.set, first.record)) {
          first.set = known.set;
          first.record = known.record;
          first.number = known.number;
        }
        return key;
      }
    }
    struct stat status {};
    if (stat(medium.path.c_str(), &status) != 0) {
      known.problem = std::generic_category().message(errno);
    } else if (S_ISREG(status.st_mode)) {
      known.bytes = status.st_size;
    } else if (!S_ISDIR(status.st_mode)) {
      known.problem = "is no file";
    }
  }
  const std::lock_guard lock(mutex_);
  const auto [entry, is_new] = media_.try_emplace(key, known);
  KnownMedium& first = entry->second;
  if (!is_new && std::tie(known.set, known.record) < std::tie(first.set, first.record)) first = std::move(known);
  return key;
}

std::string ContentIndex::path_of(const KnownMedium& medium) const {
  const io::Record record = sets_[medium.set]->text_at(medium.record);
  const auto media = media_in(record);
  const auto number = static_cast<size_t>(medium.number);
  return number < media.size() ? media[number]->path : "";  // less where the data set changed since
}

void ContentIndex::find_same(int64_t workers) {
  /// Calls `use` with the media that are alike in what `key` gives, where there are several.
  const auto groups = [](std::vector<KnownMedium*> media, const auto& key, const auto& use) {
    std::ranges::sort(media, {}, key);
    for (auto first = media.begin(); first != media.end();) {
      const auto end =
          std::find_if(first, media.end(), [&](KnownMedium* medium) { return key(medium) != key(*first); });
      if (end - first > 1) use(std::vector(first, end));
      first = end;
    }
  };
  std::vector<KnownMedium*> sized;
  sized.reserve(media_.size());
  for (auto& [key, medium] : media_) {
    if (medium.bytes > 0) sized.push_back(&medium);
  }
  std::vector<KnownMedium*> alike, to_read;
  const auto by_size = [](const KnownMedium* medium) { return medium->bytes; };
  groups(std::move(sized), by_size,
         [&](const std::vector<KnownMedium*>& group) { alike.insert(alike.end(), group.begin(), group.end()); });
  std::ranges::copy_if(alike, std::back_inserter(to_read), [](const KnownMedium* medium) { return !medium->head; });
  on_workers(std::ssize(to_read), workers, [&](int64_t place) {
    KnownMedium& medium = *to_read[static_cast<size_t>(place)];
    medium.head = hash_of_file(path_of(medium), kHeadBytes);
  });
  to_read.clear();
  std::erase_if(alike, [](const KnownMedium* medium) { return !medium->head; });
  const auto by_size_and_head = [](const KnownMedium* medium) { return std::pair(medium->bytes, *medium->head); };
  groups(std::move(alike), by_size_and_head, [&](const std::vector<KnownMedium*>& group) {
    std::ranges::copy_if(group, std::back_inserter(to_read),
                         [](const KnownMedium* medium) { return !medium->content; });
  });
  on_workers(std::ssize(to_read), workers, [&](int64_t place) {
    KnownMedium& medium = *to_read[static_cast<size_t>(place)];
    medium.content = hash_of_file(path_of(medium), kWhole);
  });
}

uint64_t ContentIndex::content_of(uint64_t medium) const {
  const KnownMedium& known = media_.at(medium);
  // What was not read is like no other.
  if (!known.content) return medium;
  return ContentHash().add(static_cast<uint64_t>(known.bytes)).add(*known.content).value();
}

uint64_t ContentIndex::record_key(const Print& print) const {
  ContentHash hash;
  hash.add(print.text);
  for (const uint64_t medium : print.media) hash.add(content_of(medium));
  return hash.value();
}

std::vector<MissingFile> ContentIndex::missing(size_t set) const {
  std::map<uint64_t, MissingFile> files;
  const auto& prints = prints_[set];
  for (size_t index = 0; index < prints.size(); ++index) {
    for (const uint64_t medium : std::set(prints[index].media.begin(), prints[index].media.end())) {
      const KnownMedium& known = media_.at(medium);
      if (known.problem.empty()) continue;
      auto [file, is_new] = files.try_emplace(medium);
      if (is_new) {
        file->second = {.path = path_of(known), .reason = known.problem, .first = static_cast<int64_t>(index)};
      }
      ++file->second.records;
    }
  }
  std::vector<MissingFile> list;
  list.reserve(files.size());
  for (auto& [key, file] : files) list.push_back(std::move(file));
  std::ranges::sort(list, [](const MissingFile& one, const MissingFile& other) {
    return std::tie(one.first, one.path) < std::tie(other.first, other.path);
  });
  return list;
}

std::vector<std::vector<int64_t>> ContentIndex::same_records(size_t set) const {
  std::vector<std::pair<uint64_t, int64_t>> keys;
  const auto& prints = prints_[set];
  keys.reserve(prints.size());
  for (size_t index = 0; index < prints.size(); ++index) {
    if (prints[index].is_usable) keys.emplace_back(record_key(prints[index]), static_cast<int64_t>(index));
  }
  std::ranges::sort(keys);
  std::vector<std::vector<int64_t>> same;
  for (size_t first = 0, end = 0; first < keys.size(); first = end) {
    while (end < keys.size() && keys[end].first == keys[first].first) ++end;
    if (end - first < 2) continue;
    auto& group = same.emplace_back();
    group.reserve(end - first);
    for (size_t place = first; place < end; ++place) group.push_back(keys[place].second);
  }
  std::ranges::sort(same);
  return same;
}

std::vector<std::vector<std::string>> ContentIndex::same_files() const {
  std::map<std::pair<int64_t, uint64_t>, std::vector<const KnownMedium*>> by_content;
  for (const auto& [key, medium] : media_) {
    if (medium.content) by_content[{medium.bytes, *medium.content}].push_back(&medium);
  }
  std::vector<std::vector<std::string>> same;
  for (const auto& [content, media] : by_content) {
    if (media.size() < 2) continue;
    auto& group = same.emplace_back();
    group.reserve(media.size());
    for (const KnownMedium* medium : media) group.push_back(path_of(*medium));
    std::ranges::sort(group);
  }
  std::ranges::sort(same);
  return same;
}

std::map<int64_t, int64_t> ContentIndex::also_in(size_t set, size_t other) const {
  std::unordered_map<uint64_t, int64_t> firsts;
  for (size_t index = 0; index < prints_[other].size(); ++index) {
    const Print& print = prints_[other][index];
    if (print.is_usable) firsts.try_emplace(record_key(print), static_cast<int64_t>(index));
  }
  std::map<int64_t, int64_t> found;
  for (size_t index = 0; index < prints_[set].size(); ++index) {
    const Print& print = prints_[set][index];
    if (!print.is_usable) continue;
    if (const auto first = firsts.find(record_key(print)); first != firsts.end()) {
      found.emplace(static_cast<int64_t>(index), first->second);
    }
  }
  return found;
}

bool ContentIndex::names_subjects(size_t set) const {
  return std::ranges::any_of(prints_[set], [](const Print& print) { return !print.subjects.empty(); });
}

SharedSubjects ContentIndex::with_subjects_of(size_t set, size_t other) const {
  std::unordered_set<uint64_t> trained, told;
  for (const Print& print : prints_[other]) trained.insert(print.subjects.begin(), print.subjects.end());
  SharedSubjects shared;
  for (size_t index = 0; index < prints_[set].size(); ++index) {
    const auto& subjects = prints_[set][index].subjects;
    if (std::ranges::none_of(subjects, [&](uint64_t subject) { return trained.contains(subject); })) continue;
    shared.records.push_back(static_cast<int64_t>(index));
    const auto names = sets_[set]->text_at(shared.records.back()).subjects;
    for (size_t i = 0; i < std::min(names.size(), subjects.size()); ++i) {
      if (trained.contains(subjects[i]) && told.insert(subjects[i]).second) shared.subjects.push_back(names[i]);
    }
  }
  return shared;
}

std::vector<int64_t> ContentIndex::with_media_of(size_t set, size_t other) const {
  std::unordered_set<uint64_t> contents;
  for (const Print& print : prints_[other]) {
    for (const uint64_t medium : print.media) contents.insert(content_of(medium));
  }
  std::vector<int64_t> found;
  for (size_t index = 0; index < prints_[set].size(); ++index) {
    const auto& media = prints_[set][index].media;
    const bool is_there =
        std::ranges::any_of(media, [&](uint64_t medium) { return contents.contains(content_of(medium)); });
    if (is_there) found.push_back(static_cast<int64_t>(index));
  }
  return found;
}

}  // namespace vlmtrain::data
