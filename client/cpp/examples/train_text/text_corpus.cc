#include "client/cpp/examples/train_text/text_corpus.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "client/cpp/examples/train_text/byte_pairs.h"

namespace lossgauge::train_text {
namespace {

constexpr std::size_t kMinDocumentBytes = 400;
constexpr std::size_t kMaxPromptBytes = 64;
constexpr std::uintmax_t kMaxTextBytes = 256u << 20;
constexpr std::size_t kHeldOutEvery = 20;

void AppendDocument(const std::vector<std::int32_t>& tokens, std::size_t prompt_bytes, const std::vector<std::uint8_t>& token_bytes, TokenStream* stream) {
  const auto start = static_cast<std::int32_t>(stream->tokens.size());
  std::size_t byte = 0;
  for (const std::int32_t token : tokens) {
    stream->tokens.push_back(token);
    stream->document_start.push_back(start);
    stream->is_prompt.push_back(byte < prompt_bytes);
    byte += token_bytes[static_cast<std::size_t>(token)];
  }
  stream->tokens.push_back(kEndToken);
  stream->document_start.push_back(start);
  stream->is_prompt.push_back(0);
}

}  // namespace

std::string ReadText(const std::string& path, std::vector<std::string>* files) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::vector<fs::path> paths;
  if (fs::is_directory(path, error)) {
    for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
      if (entry->symlink_status().type() == fs::file_type::regular) paths.push_back(entry->path());
    }
    std::sort(paths.begin(), paths.end());
    if (error) return "--text=" + path + ": " + error.message();
    if (paths.empty()) return "--text=" + path + ": the directory holds no regular file";
  } else {
    paths.emplace_back(path);
  }
  std::uintmax_t total = 0;
  for (const fs::path& file : paths) {
    const std::uintmax_t size = fs::file_size(file, error);
    if (error) return "--text=" + file.string() + ": " + error.message();
    total += size;
    if (total > kMaxTextBytes) return "--text=" + path + ": more than " + std::to_string(kMaxTextBytes >> 20) + " MiB of text";
    std::string text(size, '\0');
    std::ifstream in(file, std::ios::binary);
    if (!in.read(text.data(), static_cast<std::streamsize>(size))) return "--text=" + file.string() + ": " + std::strerror(errno);
    files->push_back(std::move(text));
  }
  return "";
}

std::vector<std::string_view> CutDocuments(std::string_view file) {
  std::vector<std::string_view> documents;
  std::size_t start = 0;
  while (start < file.size()) {
    // The first blank line that leaves the document long enough, and the rest of the file long enough for one more.
    std::size_t end = file.find("\n\n", std::min(file.size(), start + kMinDocumentBytes));
    if (end == std::string_view::npos || file.size() - end < kMinDocumentBytes) {
      end = file.size();
    } else {
      end += 2;
    }
    documents.push_back(file.substr(start, end - start));
    start = end;
  }
  return documents;
}

std::size_t PromptBytes(std::string_view document) {
  const std::size_t text = std::min(document.find_first_not_of(" \t\r\n"), document.size());
  const std::size_t line_end = std::min(document.find('\n', text), document.size());
  return std::min(line_end, kMaxPromptBytes);
}

TextCorpus BuildCorpus(const std::vector<std::string>& files, std::int64_t vocab_size) {
  std::vector<std::string_view> documents;
  for (const std::string& file : files) {
    const std::vector<std::string_view> cut = CutDocuments(file);
    documents.insert(documents.end(), cut.begin(), cut.end());
  }
  std::vector<std::vector<std::int32_t>> tokens(documents.size());
  for (std::size_t i = 0; i < documents.size(); ++i) {
    for (const char c : documents[i]) tokens[i].push_back(static_cast<unsigned char>(c));
  }
  TextCorpus corpus;
  corpus.token_bytes = LearnBytePairs(vocab_size, &tokens);
  corpus.vocab_size = static_cast<std::int64_t>(corpus.token_bytes.size());
  for (std::size_t i = 0; i < documents.size(); ++i) {
    TokenStream& stream = i % kHeldOutEvery == kHeldOutEvery - 1 ? corpus.held_out : corpus.train;
    AppendDocument(tokens[i], PromptBytes(documents[i]), corpus.token_bytes, &stream);
  }
  return corpus;
}

}  // namespace lossgauge::train_text
