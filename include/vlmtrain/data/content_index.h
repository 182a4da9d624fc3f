#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "vlmtrain/io/records.h"

namespace vlmtrain::data {

/// A file of a record that is not there, or is none.
struct MissingFile {
  std::string path;
  std::string reason;   ///< the system's: "No such file or directory"
  int64_t first = 0;    ///< of the records that name it, the first
  int64_t records = 0;  ///< that name it
};

struct SharedSubjects {
  std::vector<std::string> subjects;
  std::vector<int64_t> records;  ///< of these
};

/// Which records of some data sets say the same, and which of their files hold the same. Hashes of 64 bits are kept, no
/// contents: some hundred bytes for a record and for a file. Records say the same where their conversations are equal
/// to the byte and their pictures and videos hold the same; id, task and file names do not count. Of files only those
/// are read that are as large as another one, and of these wholly only those that begin alike; a folder with the frames
/// of a video is the same only by its name. Records that cannot be used are left out.
class ContentIndex {
 public:
  /// `records`, and those of later calls, must outlive the object. They are read once, on so many threads, and asked
  /// for again by find_same(). Returns the number of the data set, from 0.
  size_t add(const io::Records& records, int64_t workers, const std::function<void(int64_t done)>& on_progress = {});

  /// Reads the files that may be the same. What follows is to be asked after it.
  void find_same(int64_t workers);

  /// Files of a data set, each once, by its first record.
  std::vector<MissingFile> missing(size_t set) const;
  /// A record's pictures and videos: the same number for the same file or carried content.
  const std::vector<uint64_t>& media_of(size_t set, int64_t record) const {
    return prints_[set][static_cast<size_t>(record)].media;
  }
  /// Files of a record's masks: the same number for the same path or carried content, and the same value in it.
  const std::vector<uint64_t>& masks_of(size_t set, int64_t record) const {
    return prints_[set][static_cast<size_t>(record)].masks;
  }
  /// Pictures and videos that the records of all sets name or carry: different files, and different contents of those
  /// that are carried.
  int64_t media() const { return std::ssize(media_); }
  /// Of a set, the records that say the same: two at least in each group, ascending, groups by their first.
  std::vector<std::vector<int64_t>> same_records(size_t set) const;
  /// Different files that hold the same: their paths, in each group and the groups in order of the alphabet.
  std::vector<std::vector<std::string>> same_files() const;
  /// The records of a set that say what one of another set says: with the first such.
  std::map<int64_t, int64_t> also_in(size_t set, size_t other) const;
  /// The records of a set with a picture or video that a record of another set has too.
  std::vector<int64_t> with_media_of(size_t set, size_t other) const;
  /// Whether a record of a set says whom its media show (Record::subjects).
  bool names_subjects(size_t set) const;
  /// Who is in a set and in another one, in the order of the set.
  SharedSubjects with_subjects_of(size_t set, size_t other) const;

 private:
  struct Print {
    bool is_usable = false;
    uint64_t text = 0;               ///< of the conversation
    std::vector<uint64_t> media;     ///< keys of media_, in the record's order
    std::vector<uint64_t> masks;     ///< of files, in the record's order
    std::vector<uint64_t> subjects;  ///< hashes of their names
  };
  struct KnownMedium {
    size_t set = 0;  ///< where it was met, and which of that record's media it is
    int64_t record = 0;
    int64_t number = 0;
    int64_t bytes = 0;                     ///< 0: not compared
    std::optional<uint64_t> head = {};     ///< hash of its beginning, where it was read
    std::optional<uint64_t> content = {};  ///< of all of it, where another has its size and beginning
    std::string problem = {};
  };

  Print print_of(const io::Record& record, size_t set, int64_t index);
  uint64_t enter(const io::Medium& medium, KnownMedium place);
  uint64_t content_of(uint64_t medium) const;
  uint64_t record_key(const Print& print) const;
  std::string path_of(const KnownMedium& medium) const;

  std::vector<const io::Records*> sets_;
  std::vector<std::vector<Print>> prints_;  // of each set, by index
  std::mutex mutex_;                        // guards what follows while records are read
  std::unordered_map<uint64_t, KnownMedium> media_;
};

}  // namespace vlmtrain::data
