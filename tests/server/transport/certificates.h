// Authorities and certificates made by the openssl command when a test runs, so that none of them can expire in the repository.
#ifndef LOSSGAUGE_TESTS_SERVER_TRANSPORT_CERTIFICATES_H_
#define LOSSGAUGE_TESTS_SERVER_TRANSPORT_CERTIFICATES_H_

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace lossgauge::testing {

inline constexpr char kLoopbackNames[] = "IP:127.0.0.1,DNS:localhost";  // for Certificates::Sign

struct CertificateFiles {
  std::string cert;
  std::string key;
};

class Certificates {
 public:
  explicit Certificates(std::string directory) : directory_(std::move(directory)) {
    Run("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.pem");
    Run("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=stranger -keyout other_ca.key -out other_ca.pem");
  }
  std::string ca() const { return Path("ca.pem"); }
  std::string other_ca() const { return Path("other_ca.pem"); }

  // Signed by `authority` ("ca", "other_ca") for `names` ("IP:127.0.0.1,DNS:localhost"). `days` may lie in the past: -1 expired yesterday.
  CertificateFiles Sign(const std::string& file, const std::string& names, const std::string& authority = "ca", int days = 2) {
    Run("req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=" + file + " -keyout " + file + ".key -out " + file + ".csr");
    std::ofstream(Path(file + ".ext")) << "subjectAltName=" << names << "\n";
    const std::string sign = "x509 -req -in " + file + ".csr -CA " + authority + ".pem -CAkey " + authority + ".key -CAcreateserial -extfile " + file +
                             ".ext -out " + file + ".pem -days ";
    // "x509 -req" takes no begin and end: what has expired is made by a clock of two days ago, which "ca" has to accept.
    if (days < 0) {
      RunCa(file, authority);
    } else {
      Run(sign + std::to_string(days));
    }
    return {Path(file + ".pem"), Path(file + ".key")};
  }
  CertificateFiles SelfSigned(const std::string& file, const std::string& names) {
    Run("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=" + file + " -addext subjectAltName=" + names + " -keyout " +
        file + ".key -out " + file + ".pem");
    return {Path(file + ".pem"), Path(file + ".key")};
  }
  std::string Path(const std::string& file) const { return directory_ + "/" + file; }

  static std::string Read(const std::string& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  // As tools that renew certificates do it: beside, then renamed.
  static void Replace(const std::string& to, const std::string& from) {
    std::filesystem::copy_file(from, to + ".new", std::filesystem::copy_options::overwrite_existing);
    chmod((to + ".new").c_str(), 0600);
    std::filesystem::rename(to + ".new", to);
  }

 private:
  void Run(const std::string& arguments) {
    const std::string command = "cd " + directory_ + " && umask 077 && openssl " + arguments + " >openssl.log 2>&1";
    ASSERT_EQ(std::system(command.c_str()), 0) << command << "\n" << Read(Path("openssl.log"));
  }
  void RunCa(const std::string& file, const std::string& authority) {
    std::ofstream(Path("index.txt"));
    std::ofstream(Path("serial")) << "1000\n";
    std::ofstream(Path("ca.cnf")) << "[ca]\ndefault_ca=c\n[c]\ndatabase=index.txt\nserial=serial\nnew_certs_dir=.\ndefault_md=sha256\npolicy=p\n"
                                     "unique_subject=no\n[p]\ncommonName=supplied\n";
    Run("ca -batch -config ca.cnf -cert " + authority + ".pem -keyfile " + authority + ".key -in " + file + ".csr -out " + file + ".pem -extfile " + file +
        ".ext -startdate 20200101000000Z -enddate 20200102000000Z -notext");
  }

  const std::string directory_;
};

}  // namespace lossgauge::testing

#endif  // LOSSGAUGE_TESTS_SERVER_TRANSPORT_CERTIFICATES_H_
