// Renders a Helm chart as far as charts of this repository go, since helm is not in Debian:
//
//	render_chart CHART_DIR [-values FILE] [-api_versions A,B] [-kube_version v1.31.0] [-name RELEASE]
//
// Go templates with sprig and Helm's own functions; one YAML document after another on stdout. A template's `fail` or `required` is an error on stderr.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"gopkg.in/yaml.v3"
)

type files struct{ root string }

func (f files) Get(name string) string {
	content, err := os.ReadFile(filepath.Join(f.root, name))
	if err != nil {
		return ""
	}
	return string(content)
}

func (f files) Glob(pattern string) map[string][]byte {
	found := map[string][]byte{}
	paths, _ := filepath.Glob(filepath.Join(f.root, pattern))
	for _, path := range paths {
		name, _ := filepath.Rel(f.root, path)
		found[name] = []byte(f.Get(name))
	}
	return found
}

type versions []string

func (v versions) Has(version string) bool {
	for _, one := range v {
		if one == version {
			return true
		}
	}
	return false
}

// What a user sets lies over what the chart says: maps are merged, everything else is replaced.
func merge(base, over map[string]interface{}) map[string]interface{} {
	for key, value := range over {
		below, isMap := base[key].(map[string]interface{})
		above, alsoMap := value.(map[string]interface{})
		if isMap && alsoMap {
			base[key] = merge(below, above)
		} else {
			base[key] = value
		}
	}
	return base
}

func readYaml(path string) (map[string]interface{}, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	values := map[string]interface{}{}
	if err := yaml.Unmarshal(content, &values); err != nil {
		return nil, fmt.Errorf("%s: %v", path, err)
	}
	return values, nil
}

func functions(set *template.Template) template.FuncMap {
	functions := sprig.TxtFuncMap()
	delete(functions, "env")
	delete(functions, "expandenv")
	functions["include"] = func(name string, data interface{}) (string, error) {
		var out strings.Builder
		err := set.ExecuteTemplate(&out, name, data)
		return out.String(), err
	}
	functions["required"] = func(message string, value interface{}) (interface{}, error) {
		if value == nil || value == "" {
			return nil, fmt.Errorf("%s", message)
		}
		return value, nil
	}
	functions["toYaml"] = func(value interface{}) (string, error) {
		var out bytes.Buffer
		encoder := yaml.NewEncoder(&out)
		encoder.SetIndent(2)
		err := encoder.Encode(value)
		return strings.TrimSuffix(out.String(), "\n"), err
	}
	functions["fromYaml"] = func(text string) (map[string]interface{}, error) {
		values := map[string]interface{}{}
		err := yaml.Unmarshal([]byte(text), &values)
		return values, err
	}
	return functions
}

func run() error {
	if len(os.Args) < 2 {
		return fmt.Errorf("usage: render_chart CHART_DIR [FLAGS]")
	}
	chartDir := os.Args[1]
	flags := flag.NewFlagSet("render_chart", flag.ExitOnError)
	valuesFile := flags.String("values", "", "YAML with values")
	apiVersions := flags.String("api_versions", "", "what the cluster has, separated by commas")
	kubeVersion := flags.String("kube_version", "v1.31.0", "version of the cluster")
	name := flags.String("name", "release", "name of the release")
	if err := flags.Parse(os.Args[2:]); err != nil {
		return err
	}
	chart, err := readYaml(filepath.Join(chartDir, "Chart.yaml"))
	if err != nil {
		return err
	}
	values, err := readYaml(filepath.Join(chartDir, "values.yaml"))
	if err != nil {
		return err
	}
	if *valuesFile != "" {
		set, err := readYaml(*valuesFile)
		if err != nil {
			return err
		}
		values = merge(values, set)
	}
	// Helm gives charts the fields of Chart.yaml in capitals.
	title := map[string]interface{}{}
	for key, value := range chart {
		title[strings.ToUpper(key[:1])+key[1:]] = value
	}
	data := map[string]interface{}{
		"Values": values,
		"Chart":  title,
		"Files":  files{chartDir},
		"Release": map[string]interface{}{
			"Name": *name, "Namespace": "training", "Service": "Helm", "Revision": 1, "IsInstall": true, "IsUpgrade": false},
		"Capabilities": map[string]interface{}{
			"APIVersions": versions(strings.Split(*apiVersions, ",")), "KubeVersion": map[string]interface{}{"Version": *kubeVersion}},
	}
	set := template.New("chart").Option("missingkey=zero")
	set.Funcs(functions(set))
	paths, err := filepath.Glob(filepath.Join(chartDir, "templates", "*"))
	if err != nil {
		return err
	}
	sort.Strings(paths)
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if _, err := set.New(filepath.Base(path)).Parse(string(content)); err != nil {
			return err
		}
	}
	for _, path := range paths {
		if !strings.HasSuffix(path, ".yaml") && !strings.HasSuffix(path, ".txt") {
			continue
		}
		var out strings.Builder
		if err := set.ExecuteTemplate(&out, filepath.Base(path), data); err != nil {
			return err
		}
		text := strings.TrimSpace(out.String())
		if strings.HasSuffix(path, ".yaml") && text != "" {
			fmt.Printf("---\n# Source: %s\n%s\n", filepath.Base(path), text)
		}
	}
	return nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
