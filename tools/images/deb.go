package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"

	"github.com/ulikunitz/xz"
)

// A deb is the content of a package.
type deb struct {
	pin     pin
	control []byte            // its paragraph in dpkg's database
	files   map[string][]byte // by path without a leading slash; links are followed within the package
}

// mostUnpacked bounds one unpacked part of a package, because the sizes in a package are not pinned.
const mostUnpacked = 256 << 20

// readDeb reads a package: an archive of ar, with control.tar.xz and data.tar.xz.
func readDeb(data []byte) (deb, error) {
	var d deb
	parts, err := readAr(data)
	if err != nil {
		return deb{}, err
	}
	for name, read := range map[string]func(*tar.Reader) error{
		"control.tar.xz": d.readControl, "data.tar.xz": d.readData,
	} {
		part, ok := parts[name]
		if !ok {
			return deb{}, fmt.Errorf("it has no %s", name)
		}
		unpacked, err := xz.NewReader(bytes.NewReader(part))
		if err == nil {
			err = read(tar.NewReader(io.LimitReader(unpacked, mostUnpacked)))
		}
		if err != nil {
			return deb{}, fmt.Errorf("%s: %w", name, err)
		}
	}
	return d, nil
}

// readAr returns the members of an archive.
func readAr(data []byte) (map[string][]byte, error) {
	const magic, headerSize, sizeAt, sizeEnd = "!<arch>\n", 60, 48, 58
	rest, ok := bytes.CutPrefix(data, []byte(magic))
	if !ok {
		return nil, errors.New("it is no Debian package")
	}
	members := map[string][]byte{}
	for len(rest) >= headerSize {
		name := strings.TrimSuffix(strings.TrimSpace(string(rest[:16])), "/")
		size, err := strconv.Atoi(strings.TrimSpace(string(rest[sizeAt:sizeEnd])))
		rest = rest[headerSize:]
		if err != nil || size < 0 || size > len(rest) {
			return nil, fmt.Errorf("member %q has no valid size", name)
		}
		members[name] = rest[:size]
		rest = rest[min(size+size%2, len(rest)):]
	}
	return members, nil
}

func (d *deb) readControl(r *tar.Reader) error {
	for {
		header, err := r.Next()
		if err != nil {
			return fmt.Errorf("reading control: %w", err)
		}
		if path.Clean(header.Name) == "control" {
			d.control, err = io.ReadAll(r)
			return err
		}
	}
}

func (d *deb) readData(r *tar.Reader) error {
	d.files = map[string][]byte{}
	links := map[string]string{}
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		name := path.Clean(header.Name)
		switch header.Typeflag {
		case tar.TypeReg:
			if d.files[name], err = io.ReadAll(r); err != nil {
				return err
			}
		case tar.TypeSymlink:
			links[name] = path.Join(path.Dir(name), header.Linkname)
		}
	}
	for name := range links {
		to := name
		for range 8 { // links to links
			if next, ok := links[to]; ok {
				to = next
			}
		}
		if data, ok := d.files[to]; ok {
			d.files[name] = data
		}
	}
	return nil
}
