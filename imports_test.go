package bide_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/bide-mq/bide"

// mayImport says which packages of the module one directory, and those below it, may import. A
// directory that is not named may import none but those below itself.
var mayImport = map[string][]string{
	".":         {"wheel"},
	"wheel":     {},
	"kafka":     {"."},
	"pebblelog": {"."},
	"watchdog":  {},
	"cmd":       {".", "kafka", "pebblelog", "watchdog", "wheel"},
	"examples":  {".", "kafka", "pebblelog", "watchdog"},
	"test/e2e":  {},
}

// mayUse says in which directories, and below, a library may be imported. Tests may do it elsewhere
// too, but not for Pebble.
var mayUse = map[string][]string{
	"github.com/twmb/franz-go":      {"kafka", "cmd", "examples", "test"},
	"github.com/cockroachdb/pebble": {"pebblelog", "test/sim"}, // the simulation crashes its file system
	"github.com/spf13":              {"cmd"},
	"github.com/knadh/koanf":        {"cmd"},
	"github.com/KimMachineGun":      {"cmd"},
	"github.com/aws/aws-sdk-go-v2":  {"kafka"},
	"golang.org/x/oauth2":           {"kafka"},
}

// goFile is one file of the module with what it imports.
type goFile struct {
	dir, name string
	imports   []string
}

func (f goFile) isTest() bool { return strings.HasSuffix(f.name, "_test.go") }

func TestPackagesImportOnlyWhatTheDesignLetsThem(t *testing.T) {
	files := moduleFiles(t)
	if len(files) < 10 {
		t.Fatalf("found only %d Go files", len(files))
	}
	for _, f := range files {
		for _, imported := range f.imports {
			if own, ok := strings.CutPrefix(imported, module); ok {
				checkOwn(t, f, path.Clean("."+own))
			} else {
				checkLibrary(t, f, imported)
			}
		}
	}
}

func checkOwn(t *testing.T, f goFile, imported string) {
	t.Helper()
	owner := f.dir
	for owner != "." && mayImport[owner] == nil {
		owner = path.Dir(owner)
	}
	if f.isTest() || within(imported, f.dir) || owner != "." && within(imported, owner) || slices.Contains(mayImport[owner], imported) {
		return
	}
	t.Errorf("%s/%s imports %s, which is not for %s", f.dir, f.name, imported, owner)
}

func checkLibrary(t *testing.T, f goFile, imported string) {
	t.Helper()
	first, _, _ := strings.Cut(imported, "/")
	if !f.isTest() && within(f.dir, "wheel") && strings.Contains(first, ".") {
		t.Errorf("%s/%s imports %s: the wheel has the standard library alone", f.dir, f.name, imported)
	}
	for library, dirs := range mayUse {
		if !strings.HasPrefix(imported, library) || slices.ContainsFunc(dirs, func(dir string) bool { return within(f.dir, dir) }) {
			continue
		}
		if f.isTest() && library != "github.com/cockroachdb/pebble" {
			continue
		}
		t.Errorf("%s/%s imports %s, which is for %s alone", f.dir, f.name, imported, strings.Join(dirs, ", "))
	}
}

func TestNoPackageIsADrawerForEverything(t *testing.T) {
	for _, f := range moduleFiles(t) {
		if slices.Contains([]string{"util", "utils", "common", "types", "helper", "helpers", "misc"}, path.Base(f.dir)) {
			t.Errorf("package %s: a package's name says what its job is", f.dir)
		}
	}
}

// within reports whether directory a is b or lies below it.
func within(a, b string) bool { return a == b || strings.HasPrefix(a, b+"/") }

// moduleFiles returns the Go files of the module, nested modules left out.
func moduleFiles(t *testing.T) []goFile {
	t.Helper()
	var files []goFile
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			_, nested := os.Stat(filepath.Join(name, "go.mod"))
			if name != "." && (nested == nil || strings.HasPrefix(entry.Name(), ".") || entry.Name() == "testdata") {
				return fs.SkipDir
			}
		case strings.HasSuffix(name, ".go"):
			parsed, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
			if err != nil {
				return err
			}
			f := goFile{dir: filepath.ToSlash(filepath.Dir(name)), name: entry.Name()}
			for _, spec := range parsed.Imports {
				imported, err := strconv.Unquote(spec.Path.Value)
				if err != nil {
					return err
				}
				f.imports = append(f.imports, imported)
			}
			files = append(files, f)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
