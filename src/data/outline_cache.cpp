#include "data/outline_cache.h"

#include <sys/stat.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <exception>
#include <system_error>

#include "data/shrunk_numbers.h"
#include "vlmtrain/base/log.h"

namespace vlmtrain::data {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// To be raised whenever a sample of the same record and files may have another shape.
constexpr int64_t kFormat = 10;

uint64_t number_of(const timespec& time) {
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

/// The time of change is the system's own: a file that is replaced by one of the same size and date has another.
void add_file(ContentHash& hash, const fs::path& file) {
  struct stat status {};
  hash.add(file.native());
  if (stat(file.c_str(), &status) != 0) return;
  hash.add(static_cast<uint64_t>(status.st_size)).add(number_of(status.st_mtim)).add(number_of(status.st_ctim));
  if (!S_ISDIR(status.st_mode)) return;
  std::vector<fs::path> frames;
  std::error_code error;
  for (fs::directory_iterator entry(file, error), end; !error && entry != end; entry.increment(error)) {
    if (!entry->is_directory(error)) frames.push_back(entry->path());
  }
  std::ranges::sort(frames);
  for (const auto& frame : frames) {
    struct stat of_frame {};
    hash.add(frame.native());
    if (stat(frame.c_str(), &of_frame) != 0) continue;
    hash.add(static_cast<uint64_t>(of_frame.st_size)).add(number_of(of_frame.st_mtim)).add(number_of(of_frame.st_ctim));
  }
}

void add_medium(ContentHash& hash, const io::Medium& medium) {
  hash.add(medium.frames.size());
  for (const auto& frame : medium.frames) add_medium(hash, frame);
  hash.add(medium.bytes ? medium.path : plain_path(medium.path))
      .add(medium.bytes ? 1U : 0U)
      .add(medium.is_volume ? 1U : 0U)
      .add(medium.modality);
  if (medium.bytes) hash.add(*medium.bytes);
  if (medium.fps != 0) hash.add(std::bit_cast<uint64_t>(medium.fps));
}

void add_rle(ContentHash& hash, const io::Rle& rle) {
  hash.add(static_cast<uint64_t>(rle.height)).add(static_cast<uint64_t>(rle.width)).add(rle.counts.size());
  for (const int64_t count : rle.counts) hash.add(static_cast<uint64_t>(count));
}

void add_files_of(const io::Medium& medium, std::vector<std::string>& files) {
  for (const auto& frame : medium.frames) add_files_of(frame, files);
  if (!medium.bytes && medium.frames.empty()) files.push_back(medium.path);
}

/// {"of_record": how many, "kinds": [number, example, number, example, …]}
Json notices_json(const CachedShape& cached) {
  Json kinds = Json::array();
  for (const auto& [kind, example] : cached.notices) kinds.insert(kinds.end(), {kind, example});
  return {{"of_record", cached.notices_of_record}, {"kinds", std::move(kinds)}};
}

void take_notices(const Json& json, CachedShape& cached) {
  cached.notices_of_record = json.at("of_record");
  const Json& kinds = json.at("kinds");
  for (size_t i = 0; i + 1 < kinds.size(); i += 2) cached.notices.push_back({kinds[i], kinds[i + 1]});
}

/// What is not bytes of three colours on a plane says so at the end, and notices come last.
Json numbers_of(const CachedShape& cached) {
  const SampleShape& shape = cached.shape;
  Json grids = Json::array();
  for (const auto& grid : shape.grids) grids.insert(grids.end(), {grid.frames, grid.rows, grid.columns});
  Json numbers = Json::array({cached.fingerprint, cached.file_state, shape.tokens, shape.label_tokens,
                              shape.image_tokens, shape.images, shape.pixel_rows, shape.row.height, shape.row.width,
                              shape.videos, shape.video_frames, cached.making_bytes, std::move(grids), cached.id,
                              cached.task, cached.files, cached.shrunk ? numbers_of(*cached.shrunk) : Json()});
  const PixelRow& row = shape.row;
  const bool has_masks = shape.masks > 0;
  if (has_masks || shape.volumes > 0 || row != PixelRow{.height = row.height, .width = row.width}) {
    numbers.push_back({row.dtype, row.channels, row.depth, shape.volumes});
  }
  if (has_masks) numbers.push_back({shape.masks, shape.mask_pictures, shape.mask_side});
  if (!cached.notices.empty()) numbers.push_back(notices_json(cached));
  return numbers;
}

CachedShape shape_from(const Json& numbers) {
  CachedShape cached{.fingerprint = numbers.at(0), .file_state = numbers.at(1)};
  SampleShape& shape = cached.shape;
  int64_t* const fields[] = {&shape.tokens,       &shape.label_tokens, &shape.image_tokens, &shape.images,
                             &shape.pixel_rows,   &shape.row.height,   &shape.row.width,    &shape.videos,
                             &shape.video_frames, &cached.making_bytes};
  size_t place = 2;
  for (int64_t* field : fields) *field = numbers.at(place++);
  const Json& grids = numbers.at(place);
  for (size_t grid = 0; grid < grids.size(); grid += 3) {
    shape.grids.push_back({grids.at(grid), grids.at(grid + 1), grids.at(grid + 2)});
  }
  cached.id = numbers.at(++place);
  cached.task = numbers.at(++place);
  cached.files = numbers.at(++place).get<std::vector<std::string>>();
  if (const Json& shrunk = numbers.at(++place); !shrunk.is_null()) cached.shrunk = shrunk_in(shrunk);
  const bool has_notices = numbers.back().is_object();
  if (has_notices) take_notices(numbers.back(), cached);
  const size_t end = numbers.size() - (has_notices ? 1 : 0);
  if (end > ++place) {
    const Json& other = numbers.at(place);
    shape.row.dtype = other.at(0);
    shape.row.channels = other.at(1);
    shape.row.depth = other.at(2);
    shape.volumes = other.at(3);
  }
  if (end > ++place) {
    const Json& masks = numbers.at(place);
    shape.masks = masks.at(0);
    shape.mask_pictures = masks.at(1);
    shape.mask_side = masks.at(2);
  }
  return cached;
}

Json header_of(const std::string& key, uint64_t stamp, int64_t samples) {
  return {{"format", kFormat}, {"key", key}, {"stamp", stamp}, {"samples", samples}};
}

/// What is behind the header is hashed in blocks of so many bytes; the hash is the file's last line.
constexpr size_t kBlock = size_t{1} << 20U;
constexpr std::streamoff kHashLine = 17;

}  // namespace

uint64_t fingerprint_of(const io::Record& record) {
  ContentHash hash;
  if (!record.problem.empty()) hash.add(record.problem);
  hash.add(record.turns.size());
  for (const auto& turn : record.turns) {
    hash.add(static_cast<uint64_t>(turn.role)).add(turn.text);
    for (const size_t mark : turn.literal_marks) hash.add(static_cast<uint64_t>(mark));
  }
  for (const auto* media : {&record.images, &record.videos}) {
    hash.add(media->size());
    for (const auto& medium : *media) add_medium(hash, medium);
  }
  hash.add(record.mask_problem).add(record.masks.size());
  for (const auto& mask : record.masks) {
    add_medium(hash, mask.file);
    if (mask.rle) add_rle(hash, *mask.rle);
    hash.add(mask.structure).add(static_cast<uint64_t>(mask.image));
    hash.add(mask.value ? "value" : "").add(static_cast<uint64_t>(mask.value.value_or(0)));
  }
  return hash.value();
}

std::vector<std::string> files_of(const io::Record& record) {
  std::vector<std::string> files;
  for (const auto* media : {&record.images, &record.videos}) {
    for (const auto& medium : *media) add_files_of(medium, files);
  }
  for (const auto& mask : record.masks) {
    if (!mask.rle) add_files_of(mask.file, files);
  }
  return files;
}

uint64_t state_of(const std::vector<std::string>& files) {
  ContentHash hash;
  for (const auto& file : files) add_file(hash, file);
  return hash.value();
}

std::string plain_path(const std::string& path) {
  if (path.empty()) return path;
  static const std::string kHere = fs::absolute(".").lexically_normal().string();
  const bool is_plain = path.find("//") == std::string::npos && path.find("./") == std::string::npos &&
                        !path.ends_with("/.") && !path.ends_with("/..") && !path.empty();
  if (is_plain) return path.front() == '/' ? path : kHere + path;
  return fs::absolute(path).lexically_normal().string();
}

NoticeKinds::NoticeKinds(std::vector<std::string> names) : names_(std::move(names)) {
  for (size_t i = 0; i < names_.size(); ++i) numbers_.try_emplace(names_[i], static_cast<int64_t>(i));
}

int64_t NoticeKinds::number_of(const std::string& name) {
  const auto [entry, is_new] = numbers_.try_emplace(name, size());
  if (is_new) names_.push_back(name);
  return entry->second;
}

std::optional<int64_t> NoticeKinds::find(const std::string& name) const {
  const auto found = numbers_.find(name);
  return found == numbers_.end() ? std::nullopt : std::optional(found->second);
}

std::string line_of(const std::optional<CachedShape>& shape) {
  return shape ? numbers_of(*shape).dump(-1, ' ', false, Json::error_handler_t::replace) : "null";
}

std::optional<CachedShape> shape_in(std::string_view line, int64_t kinds) {
  const Json numbers = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!numbers.is_array()) return std::nullopt;
  try {
    auto shape = shape_from(numbers);
    const auto is_known = [kinds](const CachedNotice& notice) { return notice.kind >= 0 && notice.kind < kinds; };
    if (!std::ranges::all_of(shape.notices, is_known)) return std::nullopt;
    return shape;
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

OutlineCacheReader::OutlineCacheReader(const fs::path& file, const std::string& key) {
  read_header(file, key);
  if (samples_ > 0 && is_whole()) {
    stream_.clear();
    stream_.seekg(body_);
  } else {
    stamp_ = 0;
    samples_ = 0;
  }
}

void OutlineCacheReader::read_header(const fs::path& file, const std::string& key) {
  std::error_code error;
  if (!fs::is_regular_file(file, error)) return;
  stream_.open(file, std::ios::binary);
  std::string line(10'000, '\0');
  if (!stream_.getline(line.data(), std::ssize(line))) return;
  line.resize(static_cast<size_t>(stream_.gcount()) - 1);
  const Json header = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto number = [&header](const char* name) -> uint64_t {
    return header.is_object() && header.contains(name) && header[name].is_number_unsigned()
               ? header[name].get<uint64_t>()
               : 0;
  };
  const auto samples = static_cast<int64_t>(number("samples"));
  if (line != header_of(key, number("stamp"), samples).dump()) return;
  stamp_ = number("stamp");
  samples_ = samples;
  body_ = stream_.tellg();
}

bool OutlineCacheReader::is_whole() {
  stream_.seekg(0, std::ios::end);
  const std::streamoff end = stream_.tellg() - kHashLine;
  auto left = end - body_;
  if (left < 0) return false;
  stream_.seekg(body_);
  ContentHash hash;
  hash.add(stamp_);
  std::streamoff last_line = body_;
  for (std::string block; left > 0; left -= std::ssize(block)) {
    block.resize(std::min(kBlock, static_cast<size_t>(left)));
    if (!stream_.read(block.data(), std::ssize(block))) return false;
    hash.add(block);
    // The line break at the end is that of the last line itself.
    const bool is_last = left == std::ssize(block);
    const size_t before =
        is_last && block.size() == 1 ? std::string::npos : block.rfind('\n', block.size() - (is_last ? 2 : 1));
    if (before != std::string::npos) last_line = end - left + static_cast<std::streamoff>(before) + 1;
  }
  std::string line;
  if (!std::getline(stream_, line) || line != hash.text()) return false;
  return read_kinds(last_line);
}

/// The line after those of the samples.
bool OutlineCacheReader::read_kinds(std::streamoff place) {
  stream_.seekg(place);
  std::string line;
  std::getline(stream_, line);
  const Json names = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto is_text = [](const Json& name) { return name.is_string(); };
  if (!names.is_array() || !std::ranges::all_of(names, is_text)) return false;
  kinds_ = NoticeKinds(names.get<std::vector<std::string>>());
  return true;
}

std::string OutlineCacheReader::next() {
  std::string line;
  if (read_ < samples_ && std::getline(stream_, line)) ++read_;
  return line;
}

void OutlineCacheReader::repeat(OutlineCacheWriter& writer, int64_t but) {
  if (read_ <= but) return;
  const auto place = stream_.tellg();
  stream_.seekg(body_);
  std::string line;
  for (int64_t i = 0; i < read_ - but && std::getline(stream_, line); ++i) writer.add(line);
  stream_.seekg(place);
}

OutlineCacheWriter::OutlineCacheWriter(const fs::path& file, const std::string& key, uint64_t stamp, int64_t samples) {
  attempt([&] {
    file_.emplace(file);
    file_->write(header_of(key, stamp, samples).dump() + "\n");
  });
  hash_.add(stamp);
}

void OutlineCacheWriter::add(std::string_view line) {
  block_ += line;
  block_ += '\n';
  while (block_.size() >= kBlock) write_block();
}

void OutlineCacheWriter::commit(const NoticeKinds& kinds) {
  add(Json(kinds.names()).dump(-1, ' ', false, Json::error_handler_t::replace));
  if (!block_.empty()) write_block();
  if (!file_) return;
  attempt([&] {
    file_->write(hash_.text() + "\n");
    file_->commit();
  });
}

void OutlineCacheWriter::write_block() {
  const auto block = std::string_view(block_).substr(0, kBlock);
  hash_.add(block);
  if (file_) attempt([&] { file_->write(block); });
  block_.erase(0, block.size());
}

template <class Act>
void OutlineCacheWriter::attempt(const Act& act) {
  try {
    act();
  } catch (const std::exception& problem) {
    file_.reset();
    spdlog::info("what was found out about the data is not kept for the next start: {}", problem.what());
  }
}

}  // namespace vlmtrain::data
